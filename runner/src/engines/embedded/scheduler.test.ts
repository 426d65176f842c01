import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { withDeadline } from "../../deadline.ts";
import { choose, routesOf, ScriptedSampler } from "../fixtures/scripted-sampler.ts";
import { uniform } from "./philox.ts";
import { Scheduler, type SchedulerOptions, type SequenceOutput, type SequenceParams } from "./scheduler.ts";

const limits: SchedulerOptions = { pageSize: 4, numPages: 64, maxNumSeqs: 8, maxBatchedTokens: 64, maxModelLen: 40 };

function params(overrides: Partial<SequenceParams> = {}): SequenceParams {
  const off = { temperature: 1, topP: 1, topK: 0, stopTokenIds: new Set<number>() };
  return { prompt: [1, 2, 3], maxTokens: 5, seed: 1, ...off, ...overrides };
}

/** What the request yields by itself: the reference the scheduler is held to. */
function alone({ prompt, maxTokens, seed, stopTokenIds }: SequenceParams, maxModelLen = limits.maxModelLen, salt = 0) {
  const tokens = Array.from(prompt);
  const tokenIds: number[] = [];
  const logprobs: number[] = [];
  while (true) {
    const { token, logprob } = choose(tokens, uniform(seed, tokens.length), { salt, vocabSize: 50 });
    tokens.push(token);
    tokenIds.push(token);
    logprobs.push(Math.fround(logprob));
    if (stopTokenIds.has(token)) return { tokenIds, logprobs, finish: "stop" };
    if (tokenIds.length === maxTokens || tokens.length === maxModelLen) return { tokenIds, logprobs, finish: "length" };
  }
}

function start(options: Partial<SchedulerOptions> = {}, salt = 0) {
  const all = { ...limits, ...options };
  const sampler = new ScriptedSampler({ pageSize: all.pageSize, numPages: all.numPages });
  sampler.salt = salt;
  return { sampler, scheduler: new Scheduler(sampler, all) };
}

const soon = <T>(promise: Promise<T>) => withDeadline(promise, 20, "the scheduler");
const turns = async (count: number) => {
  for (let turn = 0; turn < count; turn++) await new Promise((resolve) => setImmediate(resolve));
};

function checkLengths({ tokenIds, logprobs, versions }: SequenceOutput) {
  expect(logprobs.length).toBe(tokenIds.length);
  expect(versions.at(-1)?.end ?? 0).toBe(tokenIds.length);
  versions.forEach(({ start: from, end }, index) => {
    expect(from).toBe(index === 0 ? 0 : versions[index - 1]!.end);
    expect(end).toBeGreaterThan(from);
  });
}

describe("a request", () => {
  it("gets its tokens up to max_tokens", async () => {
    const { scheduler, sampler } = start();
    const output = await soon(scheduler.submit("a", params()).output);
    expect(output).toMatchObject(alone(params()));
    expect(output.versions).toEqual([{ version: "default", start: 0, end: 5 }]);
    expect(sampler.freePages()).toBe(64);
  });

  it("ends with its stop token, which is part of the output", async () => {
    const third = alone(params()).tokenIds[2]!;
    const wanted = params({ stopTokenIds: new Set([third]) });
    const output = await soon(start().scheduler.submit("a", wanted).output);
    expect(output).toMatchObject(alone(wanted));
    expect(output.finish).toBe("stop");
    expect(output.tokenIds.at(-1)).toBe(third);
  });

  it("ends at the context's limit", async () => {
    const wanted = params({ maxTokens: 1000 });
    const output = await soon(start().scheduler.submit("a", wanted).output);
    expect(output).toMatchObject({ finish: "length" });
    expect(output.tokenIds.length).toBe(limits.maxModelLen - 3);
  });

  it("goes on with the same tokens after an abort, on any engine, given prompt plus kept tokens", async () => {
    // case D8
    const whole = alone(params({ maxTokens: 8 })).tokenIds;
    for (const kept of [0, 1, 7]) {
      const { scheduler, sampler } = start();
      const request = scheduler.submit("a", params({ maxTokens: 8 }));
      sampler.onStep = () => {
        if (sampler.steps === kept - 1) request.abort();
      };
      if (kept === 0) request.abort();
      const first = await soon(request.output);
      checkLengths(first);
      expect(first).toMatchObject({ finish: "abort", tokenIds: whole.slice(0, kept) });
      const rest = params({ prompt: [1, 2, 3, ...first.tokenIds], maxTokens: 8 - kept });
      const second = await soon(start().scheduler.submit("b", rest).output);
      expect([...first.tokenIds, ...second.tokenIds]).toEqual(whole);
    }
  });

  it("fails by itself when its log-probability is not finite", async () => {
    const { scheduler, sampler } = start();
    const step = sampler.step.bind(sampler);
    sampler.step = async (batch) => {
      const result = await step(batch);
      result.logprobs[0] = Number.NaN;
      return result;
    };
    const [first, second] = [scheduler.submit("a", params()), scheduler.submit("b", params({ maxTokens: 1 }))];
    await expect(soon(first.output)).rejects.toThrow("is NaN");
    expect(await soon(second.output)).toMatchObject({ finish: "length" });
    expect(sampler.freePages()).toBe(64);
  });
});

describe("pausing", () => {
  it("abort: returns partial outputs, and new requests wait for resume", async () => {
    const { scheduler, sampler } = start();
    const running = scheduler.submit("a", params({ maxTokens: 30 }));
    await turns(6);
    await soon(scheduler.pause("abort", true));
    const partial = await soon(running.output);
    checkLengths(partial);
    expect(partial.finish).toBe("abort");
    expect(partial.tokenIds).toEqual(alone(params({ maxTokens: 30 })).tokenIds.slice(0, partial.tokenIds.length));
    const steps = sampler.steps;
    const late = scheduler.submit("b", params());
    await turns(5);
    expect(sampler.steps).toBe(steps);
    scheduler.resume();
    expect(await soon(late.output)).toMatchObject(alone(params()));
  });

  it("wait: lets all that came before end, the waiting ones too", async () => {
    const { scheduler } = start({ maxNumSeqs: 1 });
    const before = [scheduler.submit("a", params()), scheduler.submit("b", params({ seed: 2 }))];
    const paused = scheduler.pause("wait", true);
    const after = scheduler.submit("c", params());
    await soon(paused);
    for (const { output } of before) expect((await soon(output)).finish).toBe("length");
    expect(scheduler.load).toBe(1);
    scheduler.resume();
    await soon(after.output);
  });

  it.each([true, false])("keep (clear cache: %s): goes on later, each token under its version", async (clearCache) => {
    const { scheduler, sampler } = start();
    const request = scheduler.submit("a", params({ maxTokens: 20 }));
    await turns(6);
    await soon(scheduler.pause("keep", clearCache));
    expect(sampler.freePages() === 64).toBe(clearCache);
    scheduler.version = "7";
    scheduler.resume();
    const output = await soon(request.output);
    checkLengths(output);
    expect(output).toMatchObject(alone(params({ maxTokens: 20 })));
    expect(output.versions.map(({ version }) => version)).toEqual(["default", "7"]);
  });
});

it("fails every request, and later ones, when the sampler fails", async () => {
  const { scheduler, sampler } = start();
  sampler.onStep = () => {
    throw new Error("broken core");
  };
  const request = scheduler.submit("a", params());
  await expect(soon(request.output)).rejects.toThrow("broken core");
  await expect(soon(scheduler.failed)).rejects.toThrow("broken core");
  await expect(soon(scheduler.submit("b", params()).output)).rejects.toThrow("broken core");
});

describe("equal prompts", () => {
  const prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
  const group = (count: number, more: Partial<SequenceParams> = {}) =>
    Array.from({ length: count }, (_, seed) => params({ prompt, seed, ...more }));
  const submitAll = (scheduler: Scheduler, wanted: SequenceParams[]) =>
    soon(Promise.all(wanted.map((one) => scheduler.submit("a", one).output)));
  const computeAlone = 10 + 19;

  it("that come together are computed once, and change no answer", async () => {
    const { scheduler, sampler } = start();
    const outputs = await submitAll(scheduler, group(4));
    outputs.forEach((output, index) => {
      expect(output).toMatchObject(alone(group(4)[index]!));
    });
    // By hand: 10 tokens once; the other three compute the last one, whose logits they need; 4 more tokens each.
    expect(sampler.computed).toBe(10 + 3 * 1 + 4 * 4);
    expect([scheduler.prefixes.queries, scheduler.prefixes.hits]).toEqual([40, 27]);
    expect(sampler.freePages()).toBe(64);
  });

  it("share while another still runs, and not after", async () => {
    const { scheduler, sampler } = start();
    const [first, second, third] = group(3, { maxTokens: 20 });
    const running = scheduler.submit("a", first!);
    await turns(6);
    expect(await soon(scheduler.submit("b", second!).output)).toMatchObject(alone(second!));
    await soon(running.output);
    expect(scheduler.prefixes.hits).toBe(9);
    expect(await soon(scheduler.submit("c", third!).output)).toMatchObject(alone(third!));
    expect(scheduler.prefixes.hits).toBe(9);
    expect(sampler.computed).toBe(computeAlone + (1 + 19) + computeAlone);
  });

  it.each([
    ["of other salts", group(2).map((one, index) => ({ ...one, cacheSalt: `s${index}` }))],
    ["shorter than a page", group(2, { prompt: [1, 2, 3, 4] })],
    ["whose tokens are scored", group(2, { promptLogprobs: true })],
    ["that end with their first token", group(2, { maxTokens: 1 })],
  ])("%s are computed each", async (_, wanted) => {
    const { scheduler } = start();
    const outputs = await submitAll(scheduler, wanted);
    outputs.forEach((output, index) => {
      expect(output).toMatchObject(alone(wanted[index]!));
    });
    expect(scheduler.prefixes.hits).toBe(0);
  });

  it("do not share what other weights have computed", async () => {
    const { scheduler, sampler } = start();
    const [first, second] = group(2, { maxTokens: 12 });
    const old = scheduler.submit("a", first!);
    await turns(6);
    await soon(scheduler.pause("keep", false));
    sampler.salt = 5;
    scheduler.resume();
    expect(await soon(scheduler.submit("b", second!).output)).toMatchObject(alone(second!, limits.maxModelLen, 5));
    await soon(old.output);
    expect(scheduler.prefixes.hits).toBe(0);
  });

  it("are scored in one go, whatever happens to their pages", async () => {
    const { scheduler } = start({ numPages: 7 });
    const outputs = await submitAll(scheduler, group(3, { promptLogprobs: true }));
    for (const { promptLogprobs } of outputs) {
      expect([...promptLogprobs!].slice(1)).toEqual(prompt.slice(1).map((token) => Math.fround(-1 - token / 64)));
    }
    expect(scheduler.preemptions).toBeGreaterThan(0);
  });
});

describe("a request that says itself whether it goes on", () => {
  it("is asked after each token, and ends where it says", async () => {
    const { scheduler } = start();
    const seen: number[] = [];
    const stops = async ({ tokenIds }: SequenceOutput) => {
      seen.push(tokenIds.length);
      await turns(3);
      return tokenIds.length === 3;
    };
    const [output, other] = await soon(
      Promise.all([scheduler.submit("a", params({ stops })).output, scheduler.submit("b", params()).output]),
    );
    expect(output).toMatchObject({ tokenIds: alone(params()).tokenIds.slice(0, 3), finish: "stop" });
    expect(seen).toEqual([1, 2, 3]);
    expect(other).toMatchObject(alone(params()));
  });

  it("fails by itself when it cannot say", async () => {
    const { scheduler, sampler } = start();
    const stops = () => Promise.reject(new Error("no such token"));
    const failing = scheduler.submit("a", params({ stops }));
    const other = scheduler.submit("b", params());
    await expect(soon(failing.output)).rejects.toThrow("no such token");
    expect(await soon(other.output)).toMatchObject(alone(params()));
    expect(sampler.freePages()).toBe(64);
  });

  it("may be aborted while it thinks", async () => {
    const { scheduler, sampler } = start();
    const stops = async () => {
      request.abort();
      return false;
    };
    const request = scheduler.submit("a", params({ stops }));
    expect(await soon(request.output)).toMatchObject({ finish: "abort", tokenIds: { length: 1 } });
    expect(sampler.freePages()).toBe(64);
  });

  // case D8: whoever goes on from an abort must not go on behind an end
  it("is aborted while it thinks: what its token ends, or another's, has ended", async () => {
    const { scheduler, sampler } = start();
    const first = alone(params()).tokenIds[0]!;
    const stops = async () => {
      scheduler.abort();
      await turns(3);
      return true;
    };
    const requests = [
      params({ stops }),
      params({ stopTokenIds: new Set([first]) }),
      params({ maxTokens: 1 }),
      params(),
    ];
    const started = requests.map((one, index) => scheduler.submit(String(index), one));
    const outputs = await soon(Promise.all(started.map(({ output }) => output)));
    expect(outputs.map(({ finish }) => finish)).toEqual(["stop", "stop", "length", "abort"]);
    for (const output of outputs) expect(output.tokenIds).toEqual([first]);
    expect(sampler.freePages()).toBe(64);
  });
});

const common = Array.from({ length: 12 }, (_, index) => index);
const arbitraryRequest = fc.record({
  prompt: fc.oneof(
    fc.array(fc.nat(49), { minLength: 1, maxLength: 12 }),
    fc.constantFrom(common, common.slice(0, 8), common.slice(0, 6)),
  ),
  maxTokens: fc.integer({ min: 1, max: 12 }),
  seed: fc.nat(),
  stops: fc.array(fc.nat(49), { maxLength: 3 }),
  arrival: fc.nat(8),
  /** Turns after arrival; none mostly. */
  abortAfter: fc.option(fc.nat(10), { freq: 3 }),
});

it("conserves requests and their tokens under any arrivals, aborts, pauses, and however few pages", async () => {
  const pauses = fc.array(fc.record({ turn: fc.nat(20), mode: fc.constantFrom("wait", "keep"), clear: fc.boolean() }), {
    maxLength: 3,
  });
  const size = fc.record({ numPages: fc.integer({ min: 6, max: 20 }), maxNumSeqs: fc.integer({ min: 1, max: 6 }) });
  await fc.assert(
    fc.asyncProperty(
      fc.array(arbitraryRequest, { maxLength: 12 }),
      pauses,
      size,
      async (requests, stops, { numPages, maxNumSeqs }) => {
        const { scheduler, sampler } = start({ numPages, maxNumSeqs, maxModelLen: 24, maxBatchedTokens: 16 });
        const outputs: Promise<[SequenceParams, boolean, SequenceOutput]>[] = [];
        for (let turn = 0; turn <= 20; turn++) {
          for (const { arrival, abortAfter, stops: ids, ...rest } of requests.filter((one) => one.arrival === turn)) {
            const wanted = params({ ...rest, stopTokenIds: new Set(ids) });
            const { output, abort } = scheduler.submit(`r${turn}`, wanted);
            if (abortAfter !== null) turns(abortAfter).then(abort);
            outputs.push(output.then((result) => [wanted, abortAfter !== null, result]));
          }
          for (const { mode, clear } of stops.filter((one) => one.turn === turn)) {
            await soon(scheduler.pause(mode as "wait" | "keep", clear));
            await turns(2);
            scheduler.resume();
          }
          await turns(1);
        }
        for (const [wanted, mayAbort, output] of await soon(Promise.all(outputs))) {
          checkLengths(output);
          const computed = [...Array.from(wanted.prompt), ...output.tokenIds].slice(0, -1);
          expect(output.routes.all()).toEqual(routesOf(output.tokenIds.length > 0 ? computed : []));
          const expected = alone(wanted, 24);
          if (output.finish !== "abort") expect(output).toMatchObject(expected);
          else {
            expect(mayAbort).toBe(true);
            expect(output.tokenIds).toEqual(expected.tokenIds.slice(0, output.tokenIds.length));
          }
        }
        expect(outputs.length).toBe(requests.length);
        expect(sampler.freePages()).toBe(numPages);
        expect(scheduler.load).toBe(0);
      },
    ),
    { numRuns: 150 },
  );
});

import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { Tokenizer } from "../data/tokenizer.ts";
import { keepPartial } from "../engines/client.ts";
import type { GenerateRequest, GenerateResult } from "../engines/types.ts";
import { type ModelCall, ModelCalls } from "./model-calls.ts";
import type { RolloutContext, RolloutLimits, RolloutTask } from "./rollout.ts";

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../../recipes/quickstart/model", import.meta.url)));
});

/** A letter's id; "a" is 71. */
const ids = (text: string) => [...text].map((letter) => letter.charCodeAt(0) - 26);
const end = 5;
const limits = { maxLen: 64, rolloutSeconds: 30, turnSeconds: 10, heldSeconds: 60 } as RolloutLimits;
const row = { id: "rows:1", messages: [], label: null, fields: {} };
const task = { row, groupId: "g", rolloutId: "g/0", attempt: 0 };

/**
 * An engine that says `script`, whatever it is asked, and is aborted once it has said so many tokens in all. Like any,
 * it looks for stop strings in its own output alone. Each abort brings a new version.
 */
class ScriptedEngine {
  readonly requests: GenerateRequest[] = [];
  private readonly script: number[];
  private readonly aborts: number[];
  private readonly promptLength: number;
  /** To what its last token ends, when it is aborted. */
  private readonly isBlind: boolean;

  constructor(script: number[], aborts: number[], promptLength: number, isBlind: boolean) {
    this.isBlind = isBlind;
    this.script = script;
    this.aborts = [...aborts];
    this.promptLength = promptLength;
  }

  async generate(request: GenerateRequest): Promise<GenerateResult> {
    this.requests.push(request);
    const { tokenIds: prompt, sampling, version } = request;
    const from = prompt.length - this.promptLength;
    const abortAt = this.aborts.shift() ?? Infinity;
    const said: number[] = [];
    let stop: GenerateResult["stop"] | null = from >= abortAt ? "abort" : null;
    while (stop === null) {
      said.push(this.script[from + said.length]!);
      const text = await tokenizer.decode(said);
      const isStop = sampling.stopTokenIds.includes(said.at(-1)!) || sampling.stop?.some((one) => text.includes(one));
      if (this.isBlind && from + said.length >= abortAt) stop = "abort";
      else if (isStop) stop = "stop";
      else if (said.length === sampling.maxTokens) stop = "length";
      else if (from + said.length >= abortAt) stop = "abort";
    }
    const logprobs = said.map((_, index) => -1 - from - index);
    return { tokenIds: said, logprobs, versions: said.map(() => version!), stop };
  }
}

/** A call of at most `maxNewTokens`, answered by the engine; each lease is of the next version, from 3. */
async function sample(
  script: number[],
  aborts: number[],
  maxNewTokens: number,
  call: ModelCall = {},
  meanwhile = () => {},
  isBlind = false,
) {
  const pending = { tokenIds: [1, 2, 78, 3], parent: null, contextIds: [1, 2, 78, 3], text: null, messageCount: null };
  const engine = new ScriptedEngine(script, aborts, pending.tokenIds.length, isBlind);
  let version = 3;
  const acquire = async () => ({ url: "http://engine", engine: 0, version: version++, release: () => {} });
  const generate = (_: string, request: GenerateRequest) => {
    meanwhile();
    return engine.generate(request);
  };
  const settings = {
    runId: "run",
    seed: 42,
    tokenizer,
    limits,
    router: { acquire },
    generate,
    locate: () => undefined,
  };
  const sampling = { temperature: 1, topP: 1, topK: 0, maxNewTokens };
  const calls = new ModelCalls(
    { ...task, sampling } as RolloutTask,
    settings as RolloutContext,
    new AbortController().signal,
  );
  return { reply: (await calls.sample(pending, call))!, requests: engine.requests };
}

describe("a call that a weight sync aborts", () => {
  // By Python: the first 48 bits of the SHA-256 of "42 g/0 0", then of that number with " 1" and " 5" behind it.
  const seeds: Record<number, number> = { 0: 213868734594603, 1: 18086881288969, 5: 278069723338146 };

  // case D8: n is 6
  test.each([0, 1, 5])("after %i tokens goes on from them", async (kept) => {
    const script = ids("abcdef");
    const { reply, requests } = await sample(script, [kept], 6);
    const { sampled, info } = reply;
    expect(sampled).toEqual({
      tokenIds: script,
      logprobs: [-1, -2, -3, -4, -5, -6],
      versions: script.map((_, at) => (at < kept ? 3 : 4)),
      stop: "length",
    });
    expect(info).toMatchObject({ callId: "g/0.0.0", stop: "length" });
    expect(requests).toHaveLength(2);
    expect(requests[1]!.tokenIds).toEqual([1, 2, 78, 3, ...script.slice(0, kept)]);
    expect(requests[1]!.sampling.maxTokens).toBe(6 - kept);
    expect([requests[0]!.sampling.seed, requests[1]!.sampling.seed]).toEqual([seeds[0], seeds[kept]]);
  });

  // case D8
  test.each([
    ["xxSTOPyyyyyy", 3, "xxSTOP", 6],
    ["xxSTOPyyyyyy", 5, "xxSTOP", 6],
    ["STOPyyyyyyyy", 1, "STOP", 8],
    // The engine that goes on sees all of it.
    ["xxSTxSTOPyyy", 4, "xxSTxSTOP", 0],
  ])("finds the stop string on the seam of %s after %i tokens, and counts what came after", async (...given) => {
    const [script, kept, said, cut] = given;
    const { reply } = await sample(ids(script), [kept], 12, { stop: ["no", "STOP"] });
    expect(reply.sampled).toEqual({
      tokenIds: ids(said),
      logprobs: ids(said).map((_, at) => -1 - at),
      versions: ids(said).map((_, at) => (at < kept ? 3 : 4)),
      stop: "stop",
      stopString: "STOP",
      cut,
    });
    expect([reply.info.stop, reply.info.cut ?? 0]).toEqual(["stop", cut]);
  });

  test("says what it would have said without, wherever and however often it is aborted", async () => {
    const letters = fc.array(fc.constantFrom(...ids("abcd"), end), { minLength: 12, maxLength: 12 });
    const stops = fc.array(fc.constantFrom("a", "ab", "bca", "dd"), { maxLength: 2 });
    const aborts = fc.array(fc.nat({ max: 11 }), { maxLength: 4 });
    await fc.assert(
      fc.asyncProperty(letters, stops, aborts, fc.integer({ min: 1, max: 12 }), async (script, stop, cuts, most) => {
        const seams = cuts.sort((one, other) => one - other);
        const { sampled, info } = (await sample(script, seams, most, { stop })).reply;
        const whole = await sample(script, [], most, { stop });
        expect(sampled.tokenIds).toEqual(whole.reply.sampled.tokenIds);
        expect([sampled.stop, info.stop]).toEqual([whole.reply.sampled.stop, whole.reply.info.stop]);
        const { length } = sampled.tokenIds;
        expect([sampled.logprobs.length, sampled.versions.length]).toEqual([length, length]);
        // A token's version counts the aborts before it.
        expect(sampled.versions).toEqual(
          sampled.versions.map((_, at) => 3 + seams.filter((seam) => seam <= at).length),
        );
      }),
      { numRuns: 200 },
    );
  });

  // case D8: an engine may be aborted before it looks at its last token
  test.each([
    ["its budget", "abcdefgh", 6, {}, "length"],
    ["its stop string", "abSTOPxx", 8, { stop: ["STOP"] }, "stop"],
  ])("at the end of %s has ended, and asks for no more", async (_, script, most, call, stop) => {
    const whole = ids(script.slice(0, 6));
    const { reply, requests } = await sample(ids(script), [6], most, call, () => {}, true);
    expect(reply.sampled).toMatchObject({ tokenIds: whole, versions: [3, 3, 3, 3, 3, 3], stop });
    expect(requests).toHaveLength(1);
  });

  test("by `keepPartial` gives what it has; without a token there is no reply", async () => {
    const leave = (aborts: number[]) => {
      const controller = new AbortController();
      return sample(ids("abcdef"), aborts, 6, { signal: controller.signal }, () => controller.abort(keepPartial));
    };
    const { reply } = await leave([2]);
    expect(reply.sampled).toMatchObject({ tokenIds: ids("ab"), versions: [3, 3], stop: "abort" });
    expect(reply.info.stop).toBe("abort");
    await expect(leave([0])).rejects.toThrow("took this rollout back");
  });
});

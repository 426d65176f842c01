import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { connect } from "node:net";
import { text as readText } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Tokenizer } from "../data/tokenizer.ts";
import { withDeadline } from "../deadline.ts";
import { deferred } from "../deferred.ts";
import { keepPartial } from "../engines/client.ts";
import type { GenerateRequest, GenerateResult } from "../engines/types.ts";
import { runClientRollout } from "./client-runner.ts";
import { Gateway } from "./gateway.ts";
import type { RolloutContext, RolloutLimits, RolloutTask } from "./rollout.ts";
import { type ChatContext, type ChatResult, type FailedRollout, Mask, type Rollout } from "./types.ts";

const fixtures = (path: string) => fileURLToPath(new URL(`../data/fixtures/${path}`, import.meta.url));
const limits: RolloutLimits = {
  maxLen: 400,
  maxTurns: 4,
  maxRequests: 64,
  rolloutSeconds: 30,
  turnSeconds: 10,
  toolSeconds: 10,
  rewardSeconds: 10,
  heldSeconds: 60,
};
const task: RolloutTask = {
  row: { id: "rows:1", messages: [{ role: "user", content: "hi" }], label: null, fields: {} },
  groupId: "g",
  rolloutId: "g/0",
  attempt: 0,
  sampling: { temperature: 0.7, topP: 1, topK: 0, maxNewTokens: null },
};

let tokenizer: Tokenizer;
let gateway: Gateway;
let warnings: string[] = [];
beforeAll(async () => {
  tokenizer = await Tokenizer.load(fixtures("bytelevel"));
});
beforeEach(async () => {
  warnings = [];
  gateway = await Gateway.start(tokenizer, (_, message) => warnings.push(message));
});
afterEach(() => gateway.stop());

type Engine = (request: GenerateRequest, signal: AbortSignal | undefined) => Promise<GenerateResult>;

/** Answers with each text in turn, then its end of turn; each token has a log-probability of its own. */
function script(...texts: string[]): { engine: Engine; requests: GenerateRequest[]; sampled: number[] } {
  const requests: GenerateRequest[] = [];
  const sampled: number[] = [];
  const engine: Engine = async (request) => {
    const number = requests.push(request) - 1;
    const tokenIds = [...(await tokenizer.encode(texts[number % texts.length]!)), tokenizer.idOf("<|im_end|>")!];
    const logprobs = tokenIds.map((_, at) => -1 - (sampled.length + at));
    sampled.push(...tokenIds);
    return { tokenIds, logprobs, versions: tokenIds.map(() => 2), stop: "stop" };
  };
  return { engine, requests, sampled };
}

interface Setting {
  limits?: Partial<RolloutLimits>;
  signal?: AbortSignal;
}

function run(agent: (context: ChatContext) => Promise<ChatResult>, engine: Engine, setting: Setting = {}) {
  const context: RolloutContext = {
    runId: "run",
    seed: 1,
    tokenizer,
    limits: { ...limits, ...setting.limits },
    router: { acquire: async () => ({ url: "http://engine", engine: 0, version: 0, release: () => {} }) },
    generate: (_, request, { signal }) => engine(request, signal),
    locate: () => "agent.ts:7",
  };
  return runClientRollout(agent, gateway, task, context, setting.signal ?? new AbortController().signal);
}

const success = async (outcome: Promise<Rollout | FailedRollout>) => {
  const result = await outcome;
  expect(result, (result as FailedRollout).message).toHaveProperty("segments");
  return result as Rollout;
};
const openai = ({ baseUrl, apiKey }: ChatContext, maxRetries = 0) =>
  new OpenAI({ baseURL: baseUrl, apiKey, maxRetries });
const trained = ({ segments }: Rollout) =>
  segments.flatMap(({ tokens, mask }) => [...tokens].filter((_, at) => mask[at] === Mask.trained));
const user = (content: string) => ({ role: "user" as const, content });
const hi = { model: "policy", messages: [user("hi")] };

async function post({ baseUrl }: ChatContext, path: string, body: object, headers: Record<string, string> = {}) {
  const url = path.startsWith("/v1") ? baseUrl + path.slice(3) : baseUrl.slice(0, -3) + path;
  const response = await fetch(url, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json", ...headers },
  });
  // biome-ignore lint/suspicious/noExplicitAny: whatever the wire says is then compared.
  return { status: response.status, body: (await response.json()) as any, headers: response.headers };
}

/** The request `hi` on a connection that can go away. */
function openPost({ baseUrl }: ChatContext, more: object = {}) {
  const headers = { "content-type": "application/json" };
  const socket = httpRequest(`${baseUrl}/chat/completions`, { method: "POST", headers });
  const closed = new Promise((resolve) => socket.on("error", () => {}).once("close", resolve));
  const text = once(socket, "response").then(([response]) => readText(response));
  text.catch(() => {});
  socket.end(JSON.stringify({ ...hi, ...more }));
  return { drop: () => socket.destroy(), closed, text };
}

describe("an agent with the OpenAI SDK", () => {
  // Case A1.
  test("three turns are one segment of exactly what was sampled", async () => {
    const { engine, sampled, requests } = script("get b", "  odd   spaces ", "bye");
    const rollout = await success(
      run(async (context) => {
        const messages: OpenAI.ChatCompletionMessageParam[] = [user("find b")];
        for (let turn = 0; turn < 3; turn++) {
          const reply = await openai(context).chat.completions.create({ model: "policy", messages });
          expect(reply.usage!.prompt_tokens).toBe(requests[turn]!.tokenIds.length);
          messages.push(reply.choices[0]!.message, user("more"));
        }
        return { reward: 0.5, info: { turns: 3, bad: Number.NaN } };
      }, engine),
    );
    expect(rollout).toMatchObject({ reward: 0.5, score: 0.5, info: { turns: 3 }, stop: "env_done" });
    expect(rollout.segments).toHaveLength(1);
    expect(trained(rollout)).toEqual(sampled);
    const [{ turns, logprobs, mask }] = rollout.segments as [Rollout["segments"][0]];
    expect(turns.map(({ callId, stop, temperature }) => [callId, stop, temperature])).toEqual(
      [0, 1, 2].map((turn) => [`g/0.0.${turn}`, "stop", 0.7]),
    );
    expect([...logprobs].filter((_, at) => mask[at] === Mask.trained)).toEqual(sampled.map((_, at) => -1 - at));
  });

  test("a stream: headers before the reply is there, then the same reply", async () => {
    const { engine, sampled } = script("streamed text");
    const rollout = await success(
      run(async (context) => {
        const stream = await openai(context).chat.completions.create({ ...hi, stream: true });
        let text = "";
        for await (const { choices } of stream) text += choices[0]?.delta.content ?? "";
        expect(text).toBe("streamed text");
        return { reward: 1 };
      }, engine),
    );
    expect(trained(rollout)).toEqual(sampled);
  });

  test("n choices are n rows, each with a seed of its own", async () => {
    const { engine, requests, sampled } = script("one", "two", "three");
    const rollout = await success(
      run(async (context) => {
        const { choices } = await openai(context).chat.completions.create({ ...hi, n: 3, seed: 5 });
        expect(choices.map(({ message }) => message.content).sort()).toEqual(["one", "three", "two"]);
        return { reward: 1 };
      }, engine),
    );
    expect(new Set(requests.map(({ sampling }) => sampling.seed)).size).toBe(3);
    expect(rollout.segments).toHaveLength(3);
    expect(trained(rollout).sort()).toEqual(sampled.sort());
  });

  // Case B4.
  test("its own temperature is overridden, and said", async () => {
    const { engine, requests } = script("x");
    await success(
      run(async (context) => {
        await openai(context).chat.completions.create({ ...hi, temperature: 0.1 });
        return { reward: 1 };
      }, engine),
    );
    expect(requests[0]!.sampling).toMatchObject({ temperature: 0.7, topP: 1 });
    expect(warnings).toEqual(["the agent sets temperature: the recipe's sampling holds"]);
  });

  test("stop strings go to the engine, and what they met is cut from the text alone", async () => {
    const ids = await tokenizer.encode("before STOP");
    const engine: Engine = async ({ sampling }) => {
      expect(sampling.stop).toEqual(["STOP"]);
      const logprobs = ids.map(() => -1);
      return { tokenIds: ids, logprobs, versions: ids.map(() => 0), stop: "stop", stopString: "STOP" };
    };
    const rollout = await success(
      run(async (context) => {
        const { choices } = await openai(context).chat.completions.create({ ...hi, stop: "STOP" });
        expect(choices[0]!.message.content).toBe("before ");
        return { reward: 1 };
      }, engine),
    );
    expect(trained(rollout)).toEqual(ids);
  });
});

describe("many calls of one rollout", () => {
  // Case H6.
  test("a main thread, two sub-agents beside it, a compaction and a call that nobody waits for", async () => {
    const answers = ["plan", "left", "right", "merged", "lost", "goes on"];
    const { engine: answer, sampled } = script(...answers);
    let drop: (() => void) | null = null;
    const counts: number[] = [];
    const engine: Engine = async (request, signal) => {
      const reply = await answer(request, signal);
      counts.push(reply.tokenIds.length);
      if (!drop) return reply;
      const seen = new Promise((resolve) => signal!.addEventListener("abort", resolve));
      drop();
      await seen;
      return reply;
    };
    const rollout = await success(
      run(async (context) => {
        const say = async (messages: OpenAI.ChatCompletionMessageParam[]) => {
          const { choices } = await openai(context).chat.completions.create({ model: "policy", messages });
          return [...messages, choices[0]!.message];
        };
        const main = await say([user("task")]);
        await say([{ role: "system", content: "sub" }, user("l")]);
        await say([{ role: "system", content: "sub" }, user("r")]);
        await say([...main, user("both say so")]);
        const gone = openPost(context);
        drop = gone.drop;
        await gone.closed;
        drop = null;
        await say([user("so far: merged"), user("and now?")]);
        return { reward: 1 };
      }, engine),
    );
    const withMask = (value: number) =>
      rollout.segments.flatMap(({ tokens, mask }) => [...tokens].filter((_, at) => mask[at] === value));
    const rejectedAt = counts.slice(0, 4).reduce((sum, count) => sum + count, 0);
    const rejected = sampled.splice(rejectedAt, counts[4]!);
    expect(withMask(Mask.rejected)).toEqual(rejected);
    expect(withMask(Mask.trained).sort()).toEqual(sampled.sort());
    expect(rollout.segments.map(({ turns }) => turns.length).sort()).toEqual([1, 1, 1, 1, 2]);
  });

  // Case I3.
  test("forty turns are one row that ends with the last of them", async () => {
    const { engine, sampled } = script("a", "b c", "d");
    const rollout = await success(
      run(
        async (context) => {
          const messages: OpenAI.ChatCompletionMessageParam[] = [user("0")];
          for (let turn = 1; turn <= 40; turn++) {
            const { choices } = await openai(context).chat.completions.create({ model: "policy", messages });
            messages.push(choices[0]!.message, user(`${turn}`));
          }
          return { reward: 1 };
        },
        engine,
        { limits: { maxLen: 4000 } },
      ),
    );
    const [segment, ...others] = rollout.segments;
    expect(others).toEqual([]);
    expect(trained(rollout)).toEqual(sampled);
    expect(segment!.turns).toHaveLength(40);
    expect(segment!.turns.at(-1)!.end).toBe(segment!.tokens.length);
  });
});

// Case J5: 1.0 is sampled; a client's JSON says 1.
describe("tool calls", () => {
  const call = '<tool_call>\n{"name": "add", "arguments": {"x": 1.0}}\n</tool_call>';
  const parameters = { type: "object" as const, properties: { x: { type: "number" } } };

  test("OpenAI's SDK: the echo stands for the ids, and numbers keep their text", async () => {
    const { engine, sampled, requests } = script(call, "three", "bye");
    const rollout = await success(
      run(async (context) => {
        const tools = [{ type: "function" as const, function: { name: "add", parameters } }];
        const ask = (messages: OpenAI.ChatCompletionMessageParam[]) =>
          openai(context).chat.completions.create({ model: "policy", messages, tools });
        const [first] = (await ask([user("hi")])).choices;
        expect(first!.finish_reason).toBe("tool_calls");
        const [given] = first!.message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[];
        expect(given!.function).toEqual({ name: "add", arguments: '{"x": 1.0}' });
        const echoed = { ...given!, function: { name: "add", arguments: '{"x":1}' } };
        const messages: OpenAI.ChatCompletionMessageParam[] = [
          user("hi"),
          { role: "assistant", content: "", tool_calls: [echoed] },
          { role: "tool", tool_call_id: given!.id, content: "3" },
        ];
        const [second] = (await ask(messages)).choices;
        await ask([...messages, second!.message, user("thanks")]);
        return { reward: 1 };
      }, engine),
    );
    expect(rollout).toMatchObject({ info: { unread_calls: 0 } });
    expect(rollout.segments).toHaveLength(1);
    expect(trained(rollout)).toEqual(sampled);
    expect(await tokenizer.decode(requests[2]!.tokenIds as number[])).toContain(call);
  });

  test("Anthropic's SDK, on the same base URL", async () => {
    const { engine, sampled } = script(call, "three");
    const rollout = await success(
      run(async ({ baseUrl, apiKey }) => {
        const client = new Anthropic({ baseURL: baseUrl, apiKey, maxRetries: 0 });
        const tools = [{ name: "add", input_schema: parameters }];
        const ask = (messages: Anthropic.MessageParam[]) =>
          client.messages.create({ model: "policy", max_tokens: 100, messages, tools });
        const { content, stop_reason } = await ask([user("hi")]);
        expect([stop_reason, content]).toMatchObject([
          "tool_use",
          [{ type: "tool_use", name: "add", input: { x: 1 } }],
        ]);
        const { id } = content[0] as Anthropic.ToolUseBlock;
        const result = { type: "tool_result" as const, tool_use_id: id, content: "3" };
        const messages: Anthropic.MessageParam[] = [
          user("hi"),
          { role: "assistant", content },
          { role: "user", content: [result] },
        ];
        expect((await ask(messages)).content).toMatchObject([{ type: "text", text: "three" }]);
        const counted = await client.messages.countTokens({ model: "policy", messages: [user("hi")] });
        const prompt = await tokenizer.encodeChat([user("hi")], { addGenerationPrompt: true });
        expect(counted).toEqual({ input_tokens: prompt.length });
        return { reward: 1 };
      }, engine),
    );
    expect(rollout.segments).toHaveLength(1);
    expect(trained(rollout)).toEqual(sampled);
  });
});

describe("requests by ids", () => {
  test("as a verifiers client makes them: models, then generate, whose answer goes on", async () => {
    const { engine, sampled, requests } = script("one", "two");
    const rollout = await success(
      run(async (context) => {
        const { data } = await openai(context).models.list();
        expect(data[0]).toMatchObject({ id: "policy", max_model_len: 400 });
        const prompt = await tokenizer.encodeChat([user("a")], { addGenerationPrompt: true });
        const params = { temperature: 1, max_tokens: 64, stop_token_ids: [2], logprobs: 1, skip_special_tokens: false };
        const generate = (token_ids: number[], more: object = {}) =>
          post(context, "/inference/v1/generate", {
            model: "policy",
            token_ids,
            sampling_params: { ...params, ...more },
          });
        const first = (await generate(prompt)).body.choices[0];
        expect(requests[0]!.sampling.stopTokenIds).toEqual([...tokenizer.stopTokenIds, 2]);
        expect(first.finish_reason).toBe("stop");
        expect(first.logprobs.content).toEqual(
          first.token_ids.map((id: number, at: number) => ({ token: `token_id:${id}`, logprob: -1 - at })),
        );
        const more = await tokenizer.encode("\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n");
        const goesOn = await generate([...prompt, ...first.token_ids, ...more], { routed_experts_prompt_start: 3 });
        expect(goesOn.status).toBe(200);
        return { reward: 1 };
      }, engine),
    );
    expect(rollout.segments).toHaveLength(1);
    expect(trained(rollout)).toEqual(sampled);
  });

  test("tokenize", async () => {
    const { engine } = script("x");
    await run(async (context) => {
      const { body } = await post(context, "/tokenize", { messages: [user("a")] });
      const tokens = await tokenizer.encodeChat([user("a")], { addGenerationPrompt: true });
      expect(body).toEqual({ count: tokens.length, max_model_len: 400, tokens });
      const empty = await fetch(`${context.baseUrl}/tokenize`, { method: "POST" });
      expect([empty.status, await empty.json()]).toMatchObject([400, { error: { type: "invalid_request_error" } }]);
      return { reward: 1 };
    }, engine);
  });

  test.each([
    [{ token_ids: [] }, "token_ids must be a list"],
    [{ token_ids: [1], sampling_params: { presence_penalty: 1 } }, "presence_penalty is not supported"],
    [{ token_ids: [1, 1_000_000] }, "token id 1000000 is not in the vocabulary"],
  ])("refused: %j", async (body, message) => {
    const { engine } = script("x");
    await run(async (context) => {
      const answer = await post(context, "/inference/v1/generate", body);
      expect(answer.status).toBe(400);
      expect(answer.body.error.message).toContain(message);
      return { reward: 1 };
    }, engine);
  });
});

describe("completions", () => {
  test("a prompt that goes on from a stored text is one segment", async () => {
    const ids = [await tokenizer.encode(" upon a time"), await tokenizer.encode(" end")];
    let turn = 0;
    const engine: Engine = async () => {
      const tokenIds = ids[turn++]!;
      return { tokenIds, logprobs: tokenIds.map(() => -1), versions: tokenIds.map(() => 0), stop: "length" };
    };
    const rollout = await success(
      run(async (context) => {
        const complete = (prompt: string) => openai(context).completions.create({ model: "policy", prompt });
        const first = (await complete("Once")).choices[0]!.text;
        expect(first).toBe(" upon a time");
        await complete(`Once${first}, the`);
        return { reward: 1 };
      }, engine),
    );
    expect(rollout.segments).toHaveLength(1);
    expect(trained(rollout)).toEqual(ids.flat());
  });
});

// Case H1.
describe("requests that come twice", () => {
  test("two identical posts at once are one call, trained once", async () => {
    const { engine, sampled, requests } = script("once");
    const rollout = await success(
      run(async (context) => {
        const both = await Promise.all([1, 2].map(() => openai(context).chat.completions.create(hi)));
        expect(both[0]).toEqual(both[1]);
        return { reward: 1 };
      }, engine),
    );
    expect(requests).toHaveLength(1);
    expect(trained(rollout)).toEqual(sampled);
  });

  test("a retry that says so gets the stored reply; the same request without that is a new one", async () => {
    const { engine, requests } = script("first", "second");
    const said: string[] = [];
    await run(async (context) => {
      for (const count of ["0", "1", "0"]) {
        const { body } = await post(context, "/v1/chat/completions", hi, { "x-stainless-retry-count": count });
        said.push(body.choices[0].message.content);
      }
      return { reward: 1 };
    }, engine);
    expect(said).toEqual(["first", "first", "second"]);
    expect(requests).toHaveLength(2);
  });

  test("a reply that the client goes on from is not kept for a retry", async () => {
    const { engine } = script("first", "second", "third");
    const said: string[] = [];
    await run(async (context) => {
      const ask = async (messages: object[], count: string) => {
        const body = { model: "policy", messages };
        const answer = await post(context, "/v1/chat/completions", body, { "x-stainless-retry-count": count });
        said.push(answer.body.choices[0].message.content);
      };
      await ask(hi.messages, "0");
      await ask([...hi.messages, { role: "assistant", content: "first" }, user("go on")], "0");
      await ask(hi.messages, "1");
      return { reward: 1 };
    }, engine);
    expect(said).toEqual(["first", "second", "third"]);
  });

  test.each([[false], [true]])(
    "a resend soon after its connection is gone joins the generation (stream: %s)",
    async (stream) => {
      const { engine: answer, requests, sampled } = script("late");
      const answered = deferred();
      let began = () => {};
      const engine: Engine = async (request, signal) => {
        began();
        await answered.promise;
        return answer(request, signal);
      };
      const rollout = await success(
        run(async (context) => {
          const gone = openPost(context, { stream });
          began = gone.drop;
          await gone.closed;
          const again = openPost(context, { stream });
          answered.resolve();
          expect(await again.text).toContain("late");
          return { reward: 1 };
        }, engine),
      );
      expect(requests).toHaveLength(1);
      expect(rollout.segments.map(({ turns }) => turns.map(({ stop }) => stop))).toEqual([["stop"]]);
      expect(trained(rollout)).toEqual(sampled);
    },
  );

  test("a reply that was done when nobody waited goes to who asks again, and is trained", async () => {
    const { engine: answer, requests, sampled } = script("done");
    let drop: (() => Promise<unknown>) | null = null;
    const engine: Engine = async (request, signal) => {
      await drop?.();
      return answer(request, signal);
    };
    const rollout = await success(
      run(async (context) => {
        const gone = openPost(context);
        drop = () => {
          gone.drop();
          return gone.closed;
        };
        await gone.closed;
        expect((await openai(context).chat.completions.create(hi)).choices[0]!.message.content).toBe("done");
        return { reward: 1 };
      }, engine),
    );
    expect(requests).toHaveLength(1);
    expect(trained(rollout)).toEqual(sampled);
  });

  /** Says its first two tokens of a request that `keepPartial` ends, as `EngineClient.generate` does. */
  function partial(answer: Engine, ended: () => void): Engine {
    return async (request, signal) => {
      const reply = await answer(request, signal);
      if (request.requestId !== "g/0.0.0") return reply;
      await new Promise((resolve) => signal!.addEventListener("abort", resolve));
      expect(signal!.reason).toBe(keepPartial);
      ended();
      const [tokenIds, logprobs, versions] = [reply.tokenIds, reply.logprobs, reply.versions].map((v) => v.slice(0, 2));
      return { tokenIds: tokenIds!, logprobs: logprobs!, versions: versions!, stop: "abort" };
    };
  }
  const rejectedThenKept = ({ segments }: Rollout) =>
    segments.map(({ mask, turns }) =>
      turns.map(({ start, end, stop }) => [end - start, mask[start], mask[end - 1], stop]),
    );

  test.each([[false], [true]])(
    "a client that is gone for good ends its generation (stream: %s): tokens kept as rejected",
    async (stream) => {
      const { engine: answer, requests, sampled } = script("lost reply", "kept");
      const ended = deferred();
      const rollout = await success(
        run(
          async (context) => {
            const gone = openPost(context, { stream });
            await expect.poll(() => requests.length).toBe(1);
            gone.drop();
            await ended.promise;
            const again = openPost(context, { stream });
            expect(await again.text).toContain("kept");
            return { reward: 1 };
          },
          partial(answer, ended.resolve),
        ),
      );
      const kept = await tokenizer.encode("kept");
      expect(rejectedThenKept(rollout)).toEqual([
        [[2, Mask.rejected, Mask.rejected, "abort"]],
        [[kept.length + 1, Mask.trained, Mask.trained, "stop"]],
      ]);
      expect(trained(rollout)).toEqual(sampled.slice(-kept.length - 1));
    },
  );

  test("what is in work when the agent ends is kept as rejected", async () => {
    const { engine: answer, requests } = script("lost reply", "kept");
    const rollout = await success(
      run(
        async (context) => {
          openPost(context);
          await expect.poll(() => requests.length).toBe(1);
          await openai(context).chat.completions.create({ ...hi, seed: 1 });
          return { reward: 1 };
        },
        partial(answer, () => {}),
      ),
    );
    expect(rejectedThenKept(rollout).flat()).toContainEqual([2, Mask.rejected, Mask.rejected, "abort"]);
    expect(trained(rollout).length).toBe((await tokenizer.encode("kept")).length + 1);
  });
});

describe("what is no request", () => {
  test("a route that is not there gets the wire's own 404", async () => {
    await run(async (context) => {
      const [openAi, anthropic] = await Promise.all(
        ["/v1/embeddings", "/v1/messages/batches"].map((path) => post(context, path, {})),
      );
      const message = "the gateway has no route POST /embeddings";
      expect(openAi).toMatchObject({ status: 404, body: { error: { message, type: "invalid_request_error" } } });
      expect(anthropic).toMatchObject({ status: 404, body: { type: "error", error: { type: "not_found_error" } } });
      return { reward: 1 };
    }, script("x").engine);
  });

  test.each([
    ["announced", "content-length: 99999999", ""],
    ["in chunks", "transfer-encoding: chunked", `4400000\r\n${"x".repeat(0x4400000)}`],
  ])(
    "too long a body, %s, gets the wire's 413, and its connection closes though the rest never comes",
    async (_, header, body) => {
      await run(async ({ baseUrl }) => {
        const { hostname, port, pathname } = new URL(baseUrl);
        const socket = connect(Number(port), hostname).on("error", () => {});
        const head = [
          `POST ${pathname}/messages HTTP/1.1`,
          `host: ${hostname}`,
          "content-type: application/json",
          header,
        ];
        socket.write(`${head.join("\r\n")}\r\n\r\n${body}`);
        const answer = await readText(socket);
        expect(answer).toMatch(/^HTTP\/1.1 413 .*connection: close/is);
        expect(answer).toContain('"type":"request_too_large"');
        return { reward: 1 };
      }, script("x").engine);
    },
  );
});

// Cases G2 and H3.
describe("how a rollout ends", () => {
  const length = async (text: string) =>
    (await tokenizer.encodeChat([user(text)], { addGenerationPrompt: true })).length;

  test.each([
    ["/v1/chat/completions", { messages: [user("hi there")] }],
    ["/v1/messages", { max_tokens: 9, messages: [user("hi there")] }],
    ["/v1/responses", { input: "hi there" }],
  ])("%s: a prompt at limit - 1, limit and limit + 1", async (path, body) => {
    const prompt = await length("hi there");
    for (const [maxLen, status] of [
      [prompt + 1, 200],
      [prompt, 400],
      [prompt - 1, 400],
    ] as const) {
      const { engine, requests } = script("x");
      const outcome = await run(
        async (context) => {
          const answer = await post(context, path, { model: "policy", ...body });
          expect(answer.status).toBe(status);
          if (status === 400) expect(JSON.stringify(answer.body)).toContain(`${prompt} tokens > ${maxLen - 1} maximum`);
          else expect(requests[0]!.sampling.maxTokens).toBe(1);
          return { reward: 1 };
        },
        engine,
        { limits: { maxLen } },
      );
      if (status === 400) expect(outcome).toMatchObject({ reason: "context" });
      else expect(outcome).toMatchObject({ reward: 1 });
    }
  });

  test("context: what came before stays trained, whether the agent takes the error or throws it", async () => {
    for (const takes of [true, false]) {
      const { engine, sampled } = script("fine");
      const rollout = await success(
        run(
          async (context) => {
            await openai(context).chat.completions.create(hi);
            const long = openai(context).chat.completions.create({ ...hi, messages: [user("x ".repeat(400))] });
            if (takes) await expect(long).rejects.toThrow("maximum context length is 60 tokens");
            else await long;
            return { reward: 0.25 };
          },
          engine,
          { limits: { maxLen: 60 } },
        ),
      );
      expect(rollout).toMatchObject({ stop: "context", reward: takes ? 0.25 : 0 });
      expect(trained(rollout)).toEqual(sampled);
    }
  });

  test("max_turns: requests beyond rollout.max_requests get an error", async () => {
    const { engine } = script("x");
    const agent = async (context: ChatContext) => {
      for (let turn = 0; ; turn++) await openai(context, 2).chat.completions.create({ ...hi, seed: turn });
    };
    const rollout = await success(run(agent, engine, { limits: { maxRequests: 3 } }));
    expect(rollout).toMatchObject({ stop: "max_turns", reward: 0 });
    expect(rollout.segments).toHaveLength(3);
  });

  test("timeout: calls get an error, and what the agent then returns counts", async () => {
    const { engine: answer, sampled } = script("x");
    const silence = () => withDeadline(new Promise<never>(() => {}), 2, "the engine");
    const engine: Engine = (request) => (sampled.length > 0 ? silence() : answer(request, undefined));
    const agent = async (context: ChatContext) => {
      await openai(context).chat.completions.create(hi);
      await expect(openai(context).chat.completions.create({ ...hi, seed: 1 })).rejects.toThrow("rollout.timeout");
      return { reward: 0.5 };
    };
    const rollout = await success(run(agent, engine, { limits: { rolloutSeconds: 2 } }));
    expect(rollout).toMatchObject({ stop: "timeout", reward: 0.5 });
    expect(trained(rollout)).toEqual(sampled);
  });

  test("failures are data: a dead engine, an agent that throws, returns nonsense, or calls nobody", async () => {
    const { engine } = script("x");
    const dead: Engine = () => Promise.reject(new Error("connection refused"));
    const calling = (then: () => unknown) => async (context: ChatContext) => {
      await openai(context).chat.completions.create(hi);
      return then() as ChatResult;
    };
    const oops = calling(() => {
      throw new TypeError("x is undefined");
    });
    const swallowing = async (context: ChatContext) => {
      await openai(context)
        .chat.completions.create(hi)
        .catch(() => {});
      return { reward: 1 };
    };
    expect(await run(swallowing, dead)).toMatchObject({ reason: "engine", message: "connection refused" });
    expect(await run(oops, engine)).toMatchObject({
      reason: "agent_error",
      message: "agent.ts:7 the agent's run failed: x is undefined",
    });
    // Case D7.
    expect(
      await run(
        calling(() => ({ reward: "1" })),
        engine,
      ),
    ).toMatchObject({ reason: "reward" });
    expect(
      await run(
        calling(() => ({ reward: Number.NaN })),
        engine,
      ),
    ).toMatchObject({ reason: "reward" });
    expect(
      await run(
        calling(() => null),
        engine,
      ),
    ).toMatchObject({ reason: "agent_error" });
    expect(await run(async () => ({ reward: 1 }), engine)).toMatchObject({
      reason: "agent_error",
      message: "the agent ended without a model call: point its client at the base URL",
    });
  });

  test("a rollout that is taken back ends at once with its generation; later requests get an error", async () => {
    const controller = new AbortController();
    let ended = false;
    const engine: Engine = (_, signal) =>
      new Promise((_, reject) => {
        signal!.addEventListener("abort", () => {
          ended = true;
          reject(new Error("aborted"));
        });
        controller.abort();
      });
    let context!: ChatContext;
    const agent = (given: ChatContext) => {
      context = given;
      return openai(given).chat.completions.create(hi) as never;
    };
    expect(await run(agent, engine, { signal: controller.signal })).toMatchObject({ reason: "aborted" });
    expect([ended, context.signal.aborted]).toEqual([true, true]);
    const { status, body, headers } = await post(context, "/v1/chat/completions", hi);
    expect([status, headers.get("x-should-retry")]).toEqual([404, "false"]);
    expect(body.error.message).toBe("there is no such session, or its rollout has ended");
    const anthropic = await post(context, "/v1/messages", { ...hi, max_tokens: 1 });
    expect(anthropic.body).toMatchObject({ type: "error", error: { type: "not_found_error" } });
  });
});

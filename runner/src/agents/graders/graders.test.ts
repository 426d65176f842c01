import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Tokenizer } from "../../data/tokenizer.ts";
import type { GenerateResult } from "../../engines/types.ts";
import { RolloutFailure } from "../rollout.ts";
import { Session } from "../trajectory.ts";
import type { GradedRollout, Grader, Message, Rollout, Row } from "../types.ts";
import { gradeRollout } from "./grade.ts";
import { judge } from "./judge.ts";
import { mathAnswer } from "./math.ts";
import { exactMatch, jsonSchemaMatch, regexMatch } from "./text.ts";

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../../../recipes/quickstart/model", import.meta.url)));
});

describe("graders of text", () => {
  test.each([
    ["ok", "ok", 1],
    [" ok\n", "ok ", 1],
    ["<think>no</think>\nok", "ok", 1],
    ["ok.", "ok", 0],
    ["7", 7, 1],
  ])("exactMatch %j beside %j", (text, label, value) => {
    expect(exactMatch()(text, label)).toBe(value);
  });

  test.each([
    [/ok/, "it is ok", undefined, 1],
    [/ok/, "no", undefined, 0],
    [/=(\d+)/g, "=1 =2", "2", 1],
    [/=(\d+)/, "=1 =2", "1", 0],
    [/=(\d+)/, "<think>=2</think>", "2", 0],
  ])("regexMatch %s in %j, label %j", (pattern, text, label, value) => {
    expect(regexMatch(pattern)(text, label)).toBe(value);
  });

  const person = {
    type: "object",
    properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } },
    required: ["name"],
  };
  test.each([
    ['{"name": "Ann", "age": 3}', 1],
    ['{"name": "Ann", "age": -3}', 0],
    ['{"age": 3}', 0],
    ['{"name": "Ann"', 0],
    ['Here:\n```json\n{"name": "Ann"}\n```\nBye', 1],
    ['```\n{"name": "Ann"}\n```\n```json\n{}\n```', 0],
    ['```\n{"name": "Ann"}\n```\n```json\n{}', 1],
    ["```\n", 0],
    ["```a\n".repeat(100_001), 0],
  ])("jsonSchemaMatch %j", async (text, value) => {
    expect(await jsonSchemaMatch(person)(text)).toBe(value);
  });

  test("jsonSchemaMatch of JSON nested deeper than a schema can be followed", async () => {
    const nested = jsonSchemaMatch({ type: "array", items: { $ref: "#" } });
    expect(await nested("[[[]]]")).toBe(1);
    expect(await nested(`${"[".repeat(50_000)}${"]".repeat(50_000)}`)).toBe(0);
  });
});

const row: Row = { id: "rows:1", messages: [{ role: "user", content: "hi" }], label: "ok", fields: {} };

/** Of replies, as an episode with a tool's answer between two makes it. */
async function rolloutOf(...texts: string[]): Promise<Rollout> {
  const session = new Session(tokenizer);
  let messages = row.messages;
  for (const [index, text] of texts.entries()) {
    const pending = await session.prepare(messages);
    const ids = [...(await tokenizer.encode(text)), 5];
    const sampled: GenerateResult = {
      tokenIds: ids,
      logprobs: ids.map(() => -1),
      versions: ids.map(() => 1),
      stop: "stop",
    };
    const message: Message = { role: "assistant", content: text };
    session.commit(pending, sampled, message, { callId: `g/0.0.${index}`, stop: "stop", temperature: 1 });
    messages = [...messages, message, { role: "tool", content: "t" }];
  }
  const ids = { runId: "run", promptId: "rows:1", groupId: "g", rolloutId: "g/0", attempt: 0 };
  const timings = { startedAt: 0, seconds: 0, modelSeconds: 0 };
  return { ...ids, segments: session.toSegments(), reward: 0.5, score: 0.5, info: { a: 1 }, stop: "env_done", timings };
}

async function graded(grade: unknown, rewardSeconds = 10, given = row) {
  const context = { tokenizer, limits: { rewardSeconds } as never, locate: () => "agent.ts:7" };
  return gradeRollout(grade as Grader, await rolloutOf("no", "ok"), given, context);
}

describe("a file's grader", () => {
  test("gets the last reply, the label and the rollout; its reward takes the place of the agent's", async () => {
    let seen: GradedRollout | undefined;
    const grade: Grader = (text, label, rollout) => {
      seen = rollout;
      return text === label ? 2 : 0;
    };
    expect(await graded(grade)).toMatchObject({ reward: 2, score: 2, info: { a: 1 }, stop: "env_done" });
    expect(seen).toMatchObject({ replies: ["no", "ok"], row, reward: 0.5 });
    const whole = { reward: 1, score: 0.25, info: { b: 2 } };
    expect(await graded(() => whole)).toMatchObject({ reward: 1, score: 0.25, info: { a: 1, b: 2 } });
    expect(await graded(exactMatch())).toMatchObject({ reward: 1 });
  });

  // Case D7.
  test.each([
    ["raises", () => Promise.reject(new TypeError("x is undefined")), "agent.ts:7 the grader failed: x is undefined"],
    ["throws null", () => Promise.reject(null), "the grader failed: null"],
    ["returns null", () => null, "grade returned the reward null"],
    ["returns nothing", () => undefined, "grade returned the reward undefined"],
    ["returns NaN", () => Number.NaN, "grade returned the reward NaN"],
    ['returns "1"', () => "1", 'grade returned the reward "1"'],
    ["returns a reward of null", () => ({ reward: null }), "grade returned the reward null"],
  ])("that %s is a failure", async (_, grade, message) => {
    await expect(graded(grade)).rejects.toMatchObject({ reason: "reward", message: expect.stringContaining(message) });
  });

  // Case D7.
  test("that hangs, or runs out of time itself, is a failure with that reason", async () => {
    const hanging = graded(() => new Promise(() => {}), 0.05);
    await expect(hanging).rejects.toMatchObject({ reason: "grader_timeout", message: "waited 0.05 s for the grader" });
    const late = graded(() => mathAnswer({ timeout: 0.2 })("\\boxed{99999999999!}", "1"));
    await expect(late).rejects.toMatchObject({ reason: "grader_timeout" });
    expect(await late.catch((error) => error)).toBeInstanceOf(RolloutFailure);
  });

  // Case D7.
  test.each([
    ["exactMatch", exactMatch()],
    ["regexMatch", regexMatch(/(o)k/)],
    ["mathAnswer", mathAnswer()],
  ])("%s without a label is a failure", async (_, grade) => {
    const message = "the row's label (data.label_key) is missing";
    await expect(graded(grade, 10, { ...row, label: undefined })).rejects.toMatchObject({ reason: "reward", message });
  });
});

describe("a judge", () => {
  let server: Server;
  let answers: [status: number, body: string][] = [];
  let asked: { url?: string; key?: string; body: { model: string; messages: Message[] } }[] = [];
  const says = (content: string): [number, string] => [200, JSON.stringify({ choices: [{ message: { content } }] })];
  beforeAll(async () => {
    server = createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      asked.push({ url: request.url, key: request.headers.authorization, body: JSON.parse(body) });
      const [status, text] = answers.shift() ?? [500, "no more"];
      response.writeHead(status).end(text);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  });
  beforeEach(() => {
    asked = [];
  });
  afterAll(() => new Promise<void>((resolve) => server.close(() => resolve())));

  function judging(options: object = {}) {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    const prompt = (answer: string, label: unknown) => `${answer} beside ${label}`;
    return judge({ url, model: "big", prompt, ...options });
  }

  test("is asked once, with its key, and its last number is the reward", async () => {
    process.env.MOLT_TEST_JUDGE = "secret";
    answers = [says("of 10, I give it\n0.75")];
    expect(await judging({ keyVariable: "MOLT_TEST_JUDGE" })("<think>x</think>yes", "ok")).toBe(0.75);
    delete process.env.MOLT_TEST_JUDGE;
    const messages = [{ role: "user", content: "yes beside ok" }];
    expect(asked).toMatchObject([
      { url: "/v1/chat/completions", key: "Bearer secret", body: { model: "big", messages } },
    ]);
  });

  test("is asked again after a fault; a function of the user's reads the score", async () => {
    answers = [[503, "busy"], says("Score: 3 of 5")];
    expect(await judging({ score: (said: string) => Number(said[7]) })("yes", "ok")).toBe(3);
    expect(asked).toHaveLength(2);
    expect(asked[0]!.key).toBe("Bearer none");
  });

  // Case D7.
  test("that fails is not scored, whatever the user's function makes of nothing", async () => {
    answers = [[500, "no"], [200, '{"choices": [{"message": {"content": null}}]}'], says("")];
    const scored = judging({ score: (said: string) => (said.includes("yes") ? 1 : 0) })("a", "ok");
    await expect(scored).rejects.toMatchObject({ reason: "reward", message: expect.stringContaining("no score in") });
    expect(asked).toHaveLength(3);
  });

  // Case D7.
  test("that says no score, or cannot be reached, is a failure", async () => {
    answers = [says("fine"), says("good"), says("well")];
    await expect(judging()("yes", "ok")).rejects.toMatchObject({
      reason: "reward",
      message: expect.stringMatching(/^the judge big at http.*: no score in HTTP 200: well$/),
    });
    const gone = judging({ url: "http://127.0.0.1:9/v1" })("yes", "ok");
    await expect(gone).rejects.toMatchObject({ reason: "reward", message: expect.stringContaining("127.0.0.1:9") });
  });
});

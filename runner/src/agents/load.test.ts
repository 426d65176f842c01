import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { Tokenizer } from "../data/tokenizer.ts";
import { bundleRoot } from "./bundle.ts";
import { loadAgent } from "./load.ts";
import { agentSource } from "./pool.ts";
import type { FailedRollout, Rollout } from "./types.ts";

const folder = mkdtempSync(join(bundleRoot(tmpdir()), ".molt-load-"));
let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../../recipes/quickstart/model", import.meta.url)));
});
afterAll(() => rmSync(folder, { recursive: true }));

/** A rollout of an agent's file on an engine that says the replies. */
async function run(
  name: string,
  source: string,
  reply: string | string[] = "ok",
  label: unknown = "ok",
  rewardSeconds = 30,
): Promise<Rollout | FailedRollout> {
  const path = join(folder, `${name}.ts`);
  writeFileSync(path, source);
  const limits = { maxLen: 2048, maxTurns: 4, maxRequests: 4, rolloutSeconds: 60, turnSeconds: 60, toolSeconds: 60 };
  const lease = { url: "", engine: 0, version: 3, release: () => {} };
  const replies = [reply].flat();
  const generate = async () => {
    const tokenIds = [...(await tokenizer.encode(replies.shift()!)), tokenizer.stopTokenIds[0]!];
    return { tokenIds, logprobs: tokenIds.map(() => -1), versions: tokenIds.map(() => 3), stop: "stop" as const };
  };
  const context = {
    runId: "run",
    seed: 1,
    tokenizer,
    limits: { ...limits, rewardSeconds, heldSeconds: 60 },
    router: { acquire: async () => lease },
    generate,
  };
  // Modules are known by their path.
  const agent = await loadAgent(
    await agentSource({ agentPath: path }, mkdtempSync(join(folder, name))),
    context,
    () => {},
  );
  const row = { id: "rows:1", messages: [{ role: "user" as const, content: "hi" }], label, fields: {} };
  const sampling = { temperature: 1, topP: 1, topK: 0, maxNewTokens: null };
  return agent({ row, groupId: "g", rolloutId: "g/0", attempt: 0, sampling }, new AbortController().signal);
}

const silent = "export default class extends Env { step() { return { reward: 0.5, done: true }; } }";

describe("a turn", () => {
  test("names the line of the agent that its reply goes to", async () => {
    process.setSourceMapsEnabled(true);
    onTestFinished(() => process.setSourceMapsEnabled(false));
    const env = `import { Env } from "molt-runner";
      interface Given { text: string }
      export default class extends Env {
        step({ text }: Given) {
          return { reward: text.length, done: true };
        }
      }`;
    const chat = `import { ChatAgent } from "molt-runner";
      export default class extends ChatAgent {

        async run({ row: { messages }, baseUrl }) {
          const headers = { "content-type": "application/json" };
          const body = JSON.stringify({ model: "policy", messages });
          await fetch(baseUrl + "/chat/completions", { method: "POST", headers, body });
          return { reward: 1 };
        }
      }`;
    const turnOf = (rollout: Rollout | FailedRollout) => (rollout as Rollout).segments[0]!.turns[0];
    expect(turnOf(await run("placed-env", env))).toMatchObject({ source: `${join(folder, "placed-env.ts")}:4` });
    expect(turnOf(await run("placed-chat", chat))).toMatchObject({ source: `${join(folder, "placed-chat.ts")}:4` });
  });
});

describe("a file's own grader", () => {
  test("says the reward in place of the agent, and the score with it", async () => {
    const file = `import { Env, exactMatch } from "molt-runner"; export const grade = exactMatch(); ${silent}`;
    expect(await run("exact", file)).toMatchObject({ reward: 1, score: 1, stop: "env_done" });
    expect(await run("exact-wrong", file, "no")).toMatchObject({ reward: 0, score: 0 });
    expect(await run("none", `import { Env } from "molt-runner"; ${silent}`)).toMatchObject({ reward: 0.5 });
  });

  // Case D7.
  test("that hangs past reward.timeout, or throws, leaves nothing to score", async () => {
    const hangs = `import { Env } from "molt-runner"; export const grade = () => new Promise(() => {}); ${silent}`;
    expect(await run("hangs", hangs, "ok", "ok", 1)).toMatchObject({
      reason: "grader_timeout",
      message: "waited 1 s for the grader",
    });
    const throws = `import { Env } from "molt-runner"; export function grade() { throw new Error("bad"); } ${silent}`;
    expect(await run("throws", throws)).toMatchObject({ reason: "reward", message: "the grader failed: bad" });
  });
});

describe("a grader that ships, called by the agent itself", () => {
  const file = `import { Env, mathAnswer } from "molt-runner";
    const grade = mathAnswer();
    export default class extends Env {
      async step({ text }, row) { return { reward: await grade(text, row.label), done: true }; }
    }`;

  test("gives its verdict", async () => {
    expect(await run("math", file, "the answer is 1/2", "0.5")).toMatchObject({ reward: 1 });
    expect(await run("math-wrong", file, "the answer is 1/3", "0.5")).toMatchObject({ reward: 0 });
  });

  // Case D7.
  test("keeps its reason when it runs out of time or has no label", async () => {
    const late = await run(
      "math-late",
      file.replace("mathAnswer();", "mathAnswer({ timeout: 0.5 });"),
      "it is \\boxed{99999999999!}",
      "1",
    );
    expect(late).toMatchObject({
      reason: "grader_timeout",
      message: "waited 0.5 s for the algebra of 99999999999! = 1",
    });
    expect(await run("math-label", file, "it is 1", null)).toMatchObject({ reason: "reward" });
  });
});

test("the Env of docs/agents.md shows its tool to the policy, runs it, and is graded", async () => {
  const before = tokenizer;
  tokenizer = await Tokenizer.load(fileURLToPath(new URL("../data/fixtures/bytelevel", import.meta.url)));
  const docs = readFileSync(new URL("../../../docs/agents.md", import.meta.url), "utf8");
  const [file] = /import [^`]*pythonTool } from "molt-runner";[^`]*/.exec(docs)!;
  const call = '<tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>';
  const outcome = (await run("docs", file, [call, "the answer is 42"], "42.0")) as Rollout;
  expect(outcome).toMatchObject({ reward: 1, stop: "env_done" });
  const text = await tokenizer.decode([...outcome.segments[0]!.tokens]);
  tokenizer = before;
  expect(text).toMatch(/Runs a Python program.*<\/tool_call>.*\b42\b.*the answer is 42/s);
});

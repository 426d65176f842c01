/** `rescore` and `replay` as processes, on a run whose rollouts a scripted engine answered. */
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { bundleRoot } from "../agents/bundle.ts";
import { loadAgent } from "../agents/load.ts";
import { agentSource } from "../agents/pool.ts";
import type { Rollout } from "../agents/types.ts";
import { readDataset } from "../data/dataset.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import type { GenerateRequest } from "../engines/types.ts";
import { RolloutStore } from "../telemetry/shards.ts";

const model = fileURLToPath(new URL("../../../recipes/quickstart/model", import.meta.url));
const cli = process.env.MOLT_CLI!;
let home: string;
let tokenizer: Tokenizer;

/** Asks until the reply is a number; the reward is whether it is the label. Each has another tool's word for "more". */
const envSource = `import { Env } from "molt-runner";
export default class extends Env {
  step({ text }, row) {
    const done = /^\\d+$/.test(text);
    if (!done) return { reward: 0, done, messages: [{ role: "tool", content: "more" }] };
    return { reward: text === row.label ? 1 : 0, done };
  }
}`;
const chatSource = `import { ChatAgent } from "molt-runner";
export default class extends ChatAgent {
  async run({ row, baseUrl, apiKey, model }) {
    const messages = [...row.messages];
    for (;;) {
      const headers = { authorization: "Bearer " + apiKey, "content-type": "application/json" };
      const body = JSON.stringify({ model, messages });
      const response = await fetch(baseUrl + "/chat/completions", { method: "POST", headers, body });
      if (!response.ok) throw new Error(await response.text());
      const { message } = (await response.json()).choices[0];
      messages.push(message);
      if (/^\\d+$/.test(message.content)) return { reward: message.content === row.label ? 1 : 0 };
      messages.push({ role: "tool", content: "more" });
    }
  }
}`;
const commandSource = `const { messages, label } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { OPENAI_BASE_URL: url, OPENAI_MODEL: model } = process.env;
(async () => {
  for (;;) {
    const request = { method: "POST", headers: { "content-type": "application/json" } };
    const response = await fetch(url + "/chat/completions", { ...request, body: JSON.stringify({ model, messages }) });
    const { message } = (await response.json()).choices[0];
    messages.push(message);
    if (/^\\d+$/.test(message.content)) return console.log(message.content === label ? 1 : 0);
    messages.push({ role: "tool", content: "more" });
  }
})();`;

/** The policy's turns, by the prompt's text. */
const turns: Record<string, string[]> = { a: ["hm", "ok then", "12"], b: ["99"], c: ["hm", "7"] };
const labels: Record<string, string> = { a: "12", b: "8", c: "7" };

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), "recorded-"));
  mkdirSync(join(home, "tmp"));
  tokenizer = await Tokenizer.load(model, { eosTokenIds: [5] });
  const rows = Object.entries(labels).map(([prompt, label]) => JSON.stringify({ prompt, label }));
  writeFileSync(join(home, "rows.jsonl"), `${rows.join("\n")}\n`);
  for (const [name, source] of Object.entries({ env: envSource, chat: chatSource })) {
    writeFileSync(join(home, `${name}.ts`), source);
    await record(name, `agent_path: ${join(home, `${name}.ts`)}`);
  }
  writeFileSync(join(home, "agent.cjs"), commandSource);
  await record("command", `agent_command: [node, ${join(home, "agent.cjs")}]`);
});
afterAll(() => {
  const left = readdirSync(join(home, "tmp"));
  rmSync(home, { recursive: true, force: true });
  expect(left).toEqual([]);
});

/** A run directory as a run leaves it: one step, a group for each row. */
async function record(name: string, agent: string): Promise<void> {
  const directory = join(home, name);
  mkdirSync(directory);
  writeFileSync(join(directory, "events.ndjson"), "");
  writeFileSync(
    join(directory, "recipe.yaml"),
    `run: { name: ${name} }
actor: { model_name_or_path: ${model}, init: random }
data: { prompt_dataset: ${join(home, "rows.jsonl")}, input_key: prompt, label_key: label, max_len: 256 }
train: { ${agent} }
`,
  );
  const [path, command] = [
    /agent_path: (.*)/.exec(agent)?.[1] ?? null,
    /\[(.*)\]/.exec(agent)?.[1]?.split(", ") ?? null,
  ];
  const { rows } = await readDataset(join(home, "rows.jsonl"), { inputKey: "prompt", labelKey: "label" });
  const folder = mkdtempSync(join(bundleRoot(tmpdir()), ".molt-agent-"));
  const source = await agentSource({ agentPath: path, agentCommand: command }, folder);
  const day = 600;
  const seconds = { rolloutSeconds: day, turnSeconds: day, toolSeconds: day, rewardSeconds: day, heldSeconds: day };
  const limits = { maxLen: 256, maxTurns: 8, maxRequests: 8, ...seconds };
  const lease = { url: "", engine: 0, version: 3, release: () => {} };
  const context = { runId: name, seed: 1, tokenizer, limits, router: { acquire: async () => lease }, generate };
  const run = await loadAgent(source, context as never, () => {});
  const sampling = { temperature: 1, topP: 1, topK: 0, maxNewTokens: null };
  const groups = await Promise.all(
    rows.map(async (row, at) => {
      const task = { row, groupId: `g${at}`, rolloutId: `g${at}/0`, attempt: 0, sampling };
      const rollout = (await run(task, new AbortController().signal)) as Rollout;
      expect(rollout).toHaveProperty("segments");
      const ids = { groupId: `g${at}`, promptId: row.id, epoch: 0, admittedVersion: 3, attempt: 0 };
      return { step: 1, group: { ...ids, rollouts: [rollout], failed: [] } };
    }),
  );
  rmSync(folder, { recursive: true });
  const store = new RolloutStore(directory, (message) => expect.unreachable(message));
  await store.add(1, groups);
  await store.flush();
}

async function generate(_: string, { tokenIds }: GenerateRequest) {
  const text = await tokenizer.decode([...tokenIds]);
  const turn = text.split("<asst>").length - 2;
  const ids = [...(await tokenizer.encode(turns[/<user>(.)/.exec(text)![1]!]![turn]!)), 5];
  return { tokenIds: ids, logprobs: ids.map(() => -0.5), versions: ids.map(() => 3), stop: "stop" as const };
}

interface Said {
  code: number;
  out: string;
  errors: string;
}

async function run(...words: string[]): Promise<Said> {
  try {
    const options = { cwd: home, env: { ...process.env, TMPDIR: join(home, "tmp") } };
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [cli, ...words], options);
    return { code: 0, out: stdout, errors: stderr };
  } catch (error) {
    const { code, stdout, stderr } = error as { code: number; stdout: string; stderr: string };
    return { code, out: stdout, errors: stderr };
  }
}

describe("rescore", () => {
  const graders = {
    // As long as the replies are: 3, 1 and 2 replies.
    "count.ts":
      "export const grade = (text: string, label: unknown, { replies }: { replies: string[] }) => replies.length;",
    "exact.ts": `import { exactMatch } from "molt-runner"; export const grade = exactMatch();`,
    "math.ts": `import { mathAnswer } from "molt-runner"; const math = mathAnswer();
      export const grade = (text, label) => math("\\\\boxed{\\\\sqrt{" + text + "^2}}", label);`,
    "fails.ts":
      'export function grade(text) {\n  if (text === "99") throw new Error("no such row\\x1b[2J");\n  return 1;\n}',
    "none.ts": "export const score = 1;",
  };
  beforeAll(() => {
    for (const [name, source] of Object.entries(graders)) writeFileSync(join(home, name), source);
  });

  test("says what changed, and the means before and after", async () => {
    const { code, out } = await run("rescore", "env", "--agent", "count.ts");
    expect({ code, out }).toEqual({
      code: 0,
      out:
        "step 1 g0/0: 1 -> 3\nstep 1 g1/0: 0 -> 1\nstep 1 g2/0: 1 -> 2\n" +
        "reward 0.6667 -> 2.0000: 3 rollouts graded, 3 changed, 0 failed\n",
    });
  });

  test.each(["exact.ts", "math.ts"])(
    "a grader that ships, in %s, finds the rewards that the agent gave",
    async (file) => {
      const { out, errors } = await run("rescore", "chat", "--agent", file);
      expect({ out, errors }).toEqual({
        out: "reward 0.6667 -> 0.6667: 3 rollouts graded, 0 changed, 0 failed\n",
        errors: "",
      });
    },
  );

  // Case D7.
  test("a grader that fails is said with its line, and counts for nothing", async () => {
    const { out } = await run("rescore", "env", "--agent", "fails.ts", "--json");
    const lines = out
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(lines.map(({ before, after }) => [before, after])).toEqual([
      [1, 1],
      [0, null],
      [1, 1],
    ]);
    expect(lines[1].message).toBe(`${join(home, "fails.ts")}:2 the grader failed: no such row\x1b[2J`);
    // What it quotes moves no cursor.
    expect((await run("rescore", "env", "--agent", "fails.ts")).out).toContain("no such row\\u{1b}[2J\n");
  });

  test("one clear error each: no grader, no file, no such run, another dataset", async () => {
    expect((await run("rescore", "env", "--agent", "none.ts")).errors).toContain("this file exports no function grade");
    expect((await run("rescore", "env", "--agent", "gone.ts")).errors).toContain("--agent: this file does not exist");
    expect((await run("rescore", "gone", "--agent", "exact.ts")).errors).toContain("no run 'gone'");
    const rows = readFileSync(join(home, "rows.jsonl"), "utf8");
    writeFileSync(join(home, "rows.jsonl"), rows.split("\n")[0]!);
    const { code, errors } = await run("rescore", "env", "--agent", "exact.ts");
    writeFileSync(join(home, "rows.jsonl"), rows);
    expect([code, errors]).toEqual([2, expect.stringContaining("data.prompt_dataset has no row rows:2 any more")]);
  });

  test("nothing is written into the run", async () => {
    const files = () => readdirSync(join(home, "env"), { recursive: true }).sort();
    const before = files();
    await run("rescore", "env", "--agent", "exact.ts");
    expect(files()).toEqual(before);
  });
});

describe.each(["env", "chat", "command"])("replay of an agent of kind %s", (kind) => {
  test("comes to the recorded reward, on the recorded replies", async () => {
    for (const [id, reward] of [
      ["g0/0", 1],
      ["g1/0", 0],
    ]) {
      const { code, out, errors } = await run("replay", kind, `${id}`);
      const line = `reward ${reward} (env_done), recorded ${reward} (env_done); recorded calls left 0\n`;
      expect({ code, out, errors }).toEqual({ code: 0, out: line, errors: "" });
    }
  });
});

describe("an agent that was changed since", () => {
  async function replayed(name: string, from: string, to: string, ...words: string[]): Promise<Said> {
    const file = join(home, `${name}.ts`);
    const source = readFileSync(file, "utf8");
    expect(source).toContain(from);
    writeFileSync(file, source.replace(from, to));
    const said = await run("replay", name, "g0/0", ...words);
    writeFileSync(file, source);
    return said;
  }

  test("another reward is shown beside the recorded one", async () => {
    const { out } = await replayed("env", "? 1 : 0", "? 5 : 0", "--json");
    const recorded = { reward: 1, stop: "env_done" };
    expect(JSON.parse(out)).toEqual({ recorded, replayed: { ...recorded, reward: 5 }, left: 0 });
  });

  test.each(["env", "chat"])("another prompt is an error that says where (%s)", async (name) => {
    const { code, errors } = await replayed(name, '"more"', '"less"');
    expect(code).toBe(1);
    expect(errors).toContain("call 2 has another prompt than was recorded, from token ");
    expect(errors).toContain(': "less<end><asst>"; recorded: "more<end><asst>"');
  });

  test("more calls than recorded are an error, fewer are said", async () => {
    const never = await replayed("env", "/^\\d+$/", "/^never$/");
    expect([never.code, never.errors]).toEqual([
      1,
      expect.stringContaining("call 4 was never recorded: the rollout has 3"),
    ]);
    const once = await replayed("env", "/^\\d+$/", "/^/");
    expect(once.out).toBe("reward 0 (env_done), recorded 1 (env_done); recorded calls left 2\n");
  });

  test("what it throws is shown at its line", async () => {
    const { code, errors } = await replayed("env", "const done", 'throw new Error("no such move"); const done');
    expect([code, errors]).toEqual([1, expect.stringContaining(`${join(home, "env.ts")}:4 the agent's step failed`)]);
  });

  test("a rollout that was never stored", async () => {
    const { code, errors } = await run("replay", "env", "g9/0");
    expect([code, errors]).toEqual([2, expect.stringContaining("the run has stored no rollout g9/0")]);
  });
});

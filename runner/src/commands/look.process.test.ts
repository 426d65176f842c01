/** A small run with every sink, and the verbs that look at it: as real processes, with secrets planted around them. */

import { spawn, spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { until } from "../../test/processes.ts";
import { follow, type RunUpdate } from "../telemetry/live/follow.ts";
import type { LiveAddress } from "../telemetry/live/server.ts";
import { EventLog } from "../telemetry/log.ts";

const root = fileURLToPath(new URL("../../../", import.meta.url));
const cli = process.env.MOLT_CLI!;
const planted = {
  WANDB_API_KEY: "planted-wandb-0451",
  GROUP_TOKEN: "planted-group-0452",
  DB_PASSWORD: "planted-db-0453",
};
let home = "";
let environment: NodeJS.ProcessEnv;
let directory = "";
let live: LiveAddress;
let output = "";
const updates: RunUpdate[] = [];

const recipe = `
run: { name: look, steps: 3 }
actor: { model_name_or_path: quickstart/model, init: random }
data: { prompt_dataset: prompts.jsonl, input_key: prompt, label_key: label, max_len: 64 }
rollout: { batch_size: 2, n_samples_per_prompt: 4, max_new_tokens: 8, max_turns: 1, max_attempts: 1 }
train: { agent_path: agent.ts }
eval: { steps: -1 }
ckpt: { save_steps: 2 }
logger: { tensorboard_dir: tb, wandb: { project: p, group: "$GROUP" } }
`;

/** Fails one prompt as libraries do: quoting what it was given. Else rewards differ. */
const agent = `
import { Env } from "molt-runner";
export default class extends Env {
  step(action, row) {
    if (row.label === "13") throw new Error("401 for key " + process.env.DB_PASSWORD + "\\u001b[2J");
    return { reward: (action.text.charCodeAt(0) || 0) / 64, done: true };
  }
}
`;

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), "look-"));
  cpSync(join(root, "recipes/quickstart"), join(home, "quickstart"), { recursive: true });
  writeFileSync(join(home, "look.yaml"), recipe.replace("$GROUP", "$" + "{env:GROUP_TOKEN}"));
  writeFileSync(join(home, "agent.ts"), agent);
  const prompts = [3, 4, 5, 6].map((digit) => JSON.stringify({ prompt: `sort ${digit}1<end>`, label: `1${digit}` }));
  writeFileSync(join(home, "prompts.jsonl"), `${prompts.join("\n")}\n`);
  mkdirSync(join(home, "packages"));
  const calls = JSON.stringify(join(home, "wandb.ndjson"));
  const write = `with open(${calls}, "a") as file: file.write(json.dumps(call) + "\\n")`;
  const note = `import json\ndef note(**call):\n    ${write}\n`;
  const methods = ["define_metric", "log", "finish"].map((name) => `    def ${name}(self, *a, **b): pass\n`).join("");
  const body = `${note}class Run:\n${methods}def init(**more):\n    note(**more)\n    return Run()\n`;
  writeFileSync(join(home, "packages", "wandb.py"), body);
  environment = { ...process.env, ...planted, PYTHONPATH: join(home, "packages") };

  const child = spawn(process.execPath, [cli, "run", "look.yaml"], { cwd: home, env: environment });
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (text) => (output += text));
  const closed = new Promise((resolve) => child.once("close", resolve));
  const address = await until("the live server", () => {
    const [name] = readdirSync(home).includes("runs") ? readdirSync(join(home, "runs")) : [];
    directory = join(home, "runs", name ?? "");
    return name !== undefined && readdirSync(directory).includes("server.json") && join(directory, "server.json");
  });
  expect(statSync(address).mode & 0o777).toBe(0o600);
  live = JSON.parse(readFileSync(address, "utf8"));
  for await (const update of follow(directory, new AbortController().signal)) updates.push(update);
  expect(await closed, output).toBe(0);
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

function look(...words: string[]): string {
  const { status, stdout, stderr } = spawnSync(process.execPath, [cli, ...words], {
    ...{ cwd: home, env: environment, encoding: "utf8" },
  });
  expect(status, stdout + stderr).toBe(0);
  return stdout;
}

function filesBelow(folder: string): string[] {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
}

test("whoever follows is told of each step once, and of the end; the server's file is gone with the run", () => {
  const [snapshot, ...rest] = updates;
  expect(snapshot!.type).toBe("snapshot");
  const events = rest.flatMap((update) => (update.type === "event" ? [update.event] : []));
  expect(rest).toHaveLength(events.length);
  const known = snapshot!.type === "snapshot" ? snapshot!.run.steps.map(({ step }) => step) : [];
  expect([...known, ...events.flatMap((event) => (event.type === "step" ? [event.step] : []))]).toEqual([1, 2, 3]);
  expect(events.at(-1)).toMatchObject({ type: "ended", state: "completed" });
  expect(readdirSync(directory).filter((name) => /server|pid|part/.test(name))).toEqual([]);
});

test("the sinks got the run's figures", () => {
  const [name] = readdirSync(join(home, "tb"));
  expect(join(home, "runs", name!)).toBe(directory);
  const [file] = readdirSync(join(home, "tb", name!));
  expect(readFileSync(join(home, "tb", name!, file!)).includes("train/reward")).toBe(true);
  const call = JSON.parse(readFileSync(join(home, "wandb.ndjson"), "utf8"));
  // W&B is given the group that the recipe names; the recipe that it is shown keeps the reference.
  expect(call).toMatchObject({ project: "p", group: planted.GROUP_TOKEN, config: { run: { name: "look" } } });
  expect(JSON.stringify(call.config)).not.toContain("planted");
});

describe("verbs that look", () => {
  const listed = () => JSON.parse(look("inspect", "latest", "--json")) as { rollout: string; reward: number }[];

  test("runs", () => {
    expect(look("runs")).toMatch(/^run +state +step +reward +eval +age\nlook-\S+ +completed +3\/3 /);
    expect(JSON.parse(look("runs", "--json"))).toMatchObject([{ state: "completed", step: 3, totalSteps: 3 }]);
  });

  test("watch, piped, of a run that has ended", () => {
    expect(look("watch", "look")).toMatch(
      /^run look-\S+ {2}completed {2}step 3\/3\n\nreward +[▁-█]{3} .*\ncompleted\n$/s,
    );
    expect(JSON.parse(look("watch", "look", "--json"))).toMatchObject({ type: "snapshot", run: { step: 3 } });
  });

  test("watch, piped, of a run that goes on without a live server, to its failure", async () => {
    const going = join(home, "going");
    mkdirSync(going);
    const log = new EventLog(join(going, "events.ndjson"));
    log.emit({ type: "started", version: 1, runId: "g", recipe: "", command: "run", totalSteps: 2 });
    log.flush();
    writeFileSync(join(going, "owner.pid"), String(process.pid));
    const child = spawn(process.execPath, [cli, "watch", going], { env: environment });
    let said = "";
    child.stdout.on("data", (text) => (said += text));
    const closed = new Promise((resolve) => child.once("close", resolve));
    await until("the snapshot", () => said.includes("step 0/2"));
    log.emit({ type: "step", step: 1, policyVersion: 1, metrics: { reward: 0.5 } });
    log.emit({ type: "failed", message: "no room\x1b[2J" });
    log.emit({ type: "ended", state: "failed" });
    rmSync(join(going, "owner.pid"));
    expect(await closed).toBe(0);
    expect(said.split("\n").slice(-3)).toEqual(["step 1/2  reward 0.500", "failed: no room\\u{1b}[2J", ""]);
  });

  test.each([["watch"], ["logs", "-f"]])("%s %s ends when nobody reads it any more", async (...verb) => {
    const piped = join(home, verb[0]!);
    mkdirSync(piped);
    const log = new EventLog(join(piped, "events.ndjson"));
    log.emit({ type: "started", version: 1, runId: "p", recipe: "", command: "run", totalSteps: 2 });
    log.flush();
    writeFileSync(join(piped, "owner.pid"), String(process.pid));
    const child = spawn(process.execPath, [cli, ...verb, piped], { env: environment });
    const closed = new Promise((resolve) => child.once("close", resolve));
    await new Promise((resolve) => child.stdout.once("data", resolve));
    child.stdout.destroy();
    const writing = setInterval(() => log.emit({ type: "warning", message: "x" }), 50);
    await closed;
    clearInterval(writing);
    rmSync(join(piped, "owner.pid"));
  });

  test("logs, and --follow of a run that has ended", () => {
    const text = look("logs", directory);
    expect(text).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d run look-/);
    expect(text).toMatch(/step 3 {2}reward/);
    expect(look("logs", "latest", "--follow")).toBe(text);
    const events = (lines: string) =>
      lines
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line));
    const written = readFileSync(join(directory, "events.ndjson"), "utf8");
    expect(events(look("logs", "latest", "--json"))).toEqual(events(written));
  });

  test("inspect", () => {
    const rows = listed();
    expect(rows.length).toBeGreaterThan(12);
    expect(JSON.parse(look("inspect", "latest", "--limit", "2", "--json"))).toEqual(rows.slice(-2));
    expect(look("inspect", "latest", "--limit", "0")).toMatch(/\n0 of \d+\n$/);
    const rewards = JSON.parse(look("inspect", "latest", "--reward", "1..9", "--json")) as typeof rows;
    expect(rewards.map(({ rollout }) => rollout)).toEqual(rows.flatMap((row) => (row.reward >= 1 ? row.rollout : [])));
    const whole = rows.find(({ reward }) => reward !== null)!;
    const shown = look("inspect", "latest", whole.rollout);
    expect(shown).toContain("<bos>");
    const { segments, texts } = JSON.parse(look("inspect", "latest", whole.rollout, "--json"));
    const [{ tokens, mask, logprobs, versions, turns }] = segments;
    expect(new Set([tokens, mask, logprobs, versions, texts[0]].map((list) => list.length)).size).toBe(1);
    const { start } = turns[0];
    expect(shown).toContain(`    ${start}  trained  ${logprobs[start].toFixed(4)}  v${versions[start]}  `);
  });

  test("report", () => {
    const page = join(home, "page.html");
    expect(JSON.parse(look("report", "latest", "--json", "-o", page))).toEqual({ report: page });
    expect(readFileSync(page, "utf8")).toMatch(/<svg .*policy_loss.*model_name_or_path/s);
    expect(readFileSync(page, "utf8")).not.toContain("&#60;end&#62;");
    look("report", "latest", "--rollouts", "-o", page);
    expect(readFileSync(page, "utf8")).toContain("&#60;end&#62;");
  });

  test("a run that is not there is an error with exit code 2, which moves no cursor and tells no secret", () => {
    for (const name of ["x\x1b[2J", `../${planted.DB_PASSWORD}`]) {
      const words = [cli, "inspect", name, "a"];
      const { status, stderr } = spawnSync(process.execPath, words, { cwd: home, env: environment, encoding: "utf8" });
      expect([status, stderr]).toEqual([
        2,
        expect.stringMatching(/no run 'x.* in runs|\.\.\/\*\*\* is not a run direc/),
      ]);
      expect(stderr).not.toContain("\x1b");
    }
  });
});

test("a secret is in no file of the run, in no sink's, and in nothing that was said", () => {
  const said = [
    output,
    ...[["runs"], ["logs", "latest"], ["watch", "latest"], ["inspect", "latest"]].map((words) => look(...words)),
  ];
  look("report", "latest", "--rollouts");
  const files = [directory, join(home, "tb")].flatMap(filesBelow);
  expect(files.length).toBeGreaterThan(10);
  const texts = [...said, ...files.map((path) => `${path}: ${readFileSync(path, "latin1")}`)];
  // The agent's error did come through, without its secret.
  expect(texts.some((text) => text.includes("401 for key ***"))).toBe(true);
  for (const text of said) expect(text).not.toContain("\x1b");
  for (const secret of [...Object.values(planted), live.token]) {
    expect(texts.flatMap((text) => (text.includes(secret) ? text.slice(0, 100) : []))).toEqual([]);
  }
});

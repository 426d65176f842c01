/** The verbs on the quickstart's model and data, a few steps each, as real processes. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { pythonPath } from "../../../native/setup/locate.mjs";
import { childrenOf, commandOf, isAlive, until } from "../../test/processes.ts";
import { deadlineMs } from "../deadline.ts";
import { EngineClient } from "../engines/client.ts";
import { EngineFleet } from "../engines/fleet.ts";
import { embeddedEngine } from "../engines/start.ts";
import type { TimedEvent } from "../telemetry/events.ts";
import { foldRun } from "../telemetry/fold.ts";
import { readEvents } from "../telemetry/log.ts";

const root = fileURLToPath(new URL("../../../", import.meta.url));
const cli = process.env.MOLT_CLI!;
let home: string;
let recipe: string;

/** 24 prompts, 2 epochs of 4 steps of 6 groups; checkpoint every second step. */
const recipeText = `
run: { name: small, seed: 3, dir: ${"RUNS"} }
actor: { model_name_or_path: warm, adam: { lr: 1.0e-3 } }
data:
  { prompt_dataset: quickstart/prompts.jsonl, input_key: prompt, label_key: label, max_len: 64, max_samples: 24,
    epochs: 2 }
rollout: { batch_size: 6, n_samples_per_prompt: 4, max_new_tokens: 8, max_turns: 1 }
train: { agent_path: quickstart/varied.ts }
eval: { dataset: quickstart/few.jsonl, steps: -1 }
ckpt: { save_steps: 2 }
`;

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), "verbs-"));
  cpSync(join(root, "recipes"), home, { recursive: true });
  recipe = join(home, "small.yaml");
  writeFileSync(recipe, recipeText.replace("RUNS", join(home, "runs")));
  const heldOut = readFileSync(join(home, "quickstart/heldout.jsonl"), "utf8").split("\n").slice(0, 12);
  writeFileSync(join(home, "quickstart/few.jsonl"), `${heldOut.join("\n")}\n`);
  // A reward that differs between replies whatever the warm-up left: gradients and scores that are not all zero.
  const agent = readFileSync(join(home, "quickstart/agent.ts"), "utf8");
  const reward = "action.text === row.label ? 1 : 0";
  expect(agent).toContain(reward);
  writeFileSync(join(home, "quickstart/varied.ts"), agent.replace(reward, "(action.text.charCodeAt(0) || 0) / 64"));
  const flags = ["--run.steps", "20", "--run.dir", join(home, "sft"), "--ckpt.output_dir", join(home, "warm")];
  const warmup = await finished(start("sft", join(home, "quickstart/warmup.yaml"), ...flags));
  expect(warmup.code, warmup.output).toBe(0);
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const started: ChildProcess[] = [];
// A test that failed leaves none to those after it.
afterEach(() => {
  for (const child of started.splice(0)) child.kill("SIGKILL");
});

function start(...words: string[]): ChildProcess {
  const child = spawn(process.execPath, [cli, ...words], { cwd: home, stdio: ["ignore", "pipe", "pipe"] });
  started.push(child);
  return child;
}

async function finished(child: ChildProcess, seconds = 240): Promise<{ code: number | null; output: string }> {
  let output = "";
  for (const stream of [child.stdout!, child.stderr!]) stream.on("data", (text) => (output += text));
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      child.kill("SIGKILL");
      reject(new Error(`still running after ${seconds} s:\n${output}`));
    }, deadlineMs(seconds));
    child.once("close", (code) => {
      clearTimeout(timer);
      resolve({ code, output });
    });
  });
}

const run = (...words: string[]) => finished(start(...words));

function newestRun(): string {
  const runs = join(home, "runs");
  return join(runs, readdirSync(runs).sort().at(-1)!);
}

function eventsOf(directory: string): TimedEvent[] {
  const path = join(directory, "events.ndjson");
  return existsSync(path) ? [...readEvents(path)] : [];
}

/** Waits for the run that `child` makes to have an event that `wanted` accepts. */
async function untilEvent(known: string[], wanted: (event: TimedEvent) => boolean): Promise<string> {
  return until(
    "an event of the run",
    () => {
      const made = readdirSync(join(home, "runs")).filter((name) => !known.includes(name));
      const directory = made[0] && join(home, "runs", made[0]);
      return directory && eventsOf(directory).some(wanted) ? directory : undefined;
    },
    240,
  );
}

function knownRuns(): string[] {
  const runs = join(home, "runs");
  mkdirSync(runs, { recursive: true });
  return readdirSync(runs);
}

/** Processes below `pid`, each with its command line. */
function descendants(pid: number): { pid: number; command: string }[] {
  return childrenOf(pid).flatMap((child) => [{ pid: child, command: commandOf(child) }, ...descendants(child)]);
}

async function expectGone(processes: { pid: number; command: string }[]): Promise<void> {
  await until("the run's processes to end", () => processes.every(({ pid }) => !isAlive(pid)));
}

/** An engine samples from the export; transformers scores the same tokens. */
async function scoreWithTransformers(folder: string): Promise<{ parameters: number; gap: number }> {
  const client = new EngineClient();
  const options = { count: 1, start: embeddedEngine(folder, [], 60), version: 0, maxRestarts: 0 };
  const fleet = await EngineFleet.start({ ...options, emit: () => {} });
  try {
    const prompt = [1, 2, 88, 84, 87, 89, 5, 3];
    const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 12, stopTokenIds: [], seed: 5 };
    const request = { requestId: "score", tokenIds: prompt, version: 0, sampling };
    const { tokenIds: sampled, logprobs } = await client.generate(fleet.urls[0]!, request, { timeoutSeconds: 30 });
    expect(sampled.length).toBeGreaterThan(1);
    const input = JSON.stringify({ prompt, sampled, logprobs });
    const script = join(root, "runner/test/check_export.py");
    const output = execFileSync(pythonPath(), [script, folder], { input, timeout: deadlineMs(120), encoding: "utf8" });
    return JSON.parse(output);
  } finally {
    await fleet.stop();
    await client.close();
  }
}

function gradientNorms(events: TimedEvent[]): number[] {
  return events.flatMap((event) => (event.type === "step" ? [event.metrics.grad_norm!] : []));
}

function trainedOnce(directory: string, epochs: number): void {
  const { groups } = foldRun(eventsOf(directory));
  const consumed = groups.filter((group) => group.outcome === "trained" || !group.requeued);
  const counts = new Map<string, number>();
  for (const { epoch, promptId } of consumed) {
    counts.set(`${epoch}:${promptId}`, (counts.get(`${epoch}:${promptId}`) ?? 0) + 1);
  }
  expect([...counts.values()].filter((count) => count !== 1)).toEqual([]);
  expect(counts.size).toBe(24 * epochs);
}

describe("run", () => {
  it("trains to the end, reports, and exports what transformers scores as our engine does", async () => {
    const { code, output } = await run("run", recipe);
    expect(code, output).toBe(0);
    const directory = newestRun();
    const summary = JSON.parse(readFileSync(join(directory, "summary.json"), "utf8"));
    expect(summary).toMatchObject({ state: "completed", steps: 8, total_steps: 8, policy_version: 8 });
    expect(summary.eval.before.step).toBe(0);
    expect(summary.eval.after.step).toBe(8);
    expect(output).toContain("held-out accuracy");
    trainedOnce(directory, 2);
    const exported = join(directory, "export");
    const { parameters, gap } = await scoreWithTransformers(exported);
    expect(parameters).toBe(87_040);
    expect(gap).toBeLessThan(1e-4);
    const apart = ["--run.dir", join(home, "evals")];
    const evaluated = await run("eval", recipe, "--actor.model_name_or_path", exported, "--json", ...apart);
    expect(evaluated.code, evaluated.output).toBe(0);
    expect(summary.eval.after.accuracy).toBeGreaterThan(0);
    expect(JSON.parse(evaluated.output).metrics.accuracy).toBe(summary.eval.after.accuracy);
  });

  it("killed with SIGKILL and resumed: same final step, every prompt consumed once, no process left", async () => {
    const known = knownRuns();
    const child = start("run", recipe);
    const ended = finished(child);
    const directory = await untilEvent(known, (event) => event.type === "step" && event.step === 5);
    const processes = descendants(child.pid!);
    expect(processes.map(({ command }) => command).join("\n")).toMatch(/serve[\s\S]*rank|rank[\s\S]*serve/);
    child.kill("SIGKILL");
    await ended;
    await expectGone(processes);
    const resumed = await run("resume", directory);
    expect(resumed.code, resumed.output).toBe(0);
    expect(resumed.output).toMatch(/resuming at [46] of 8/); // case F5: below
    trainedOnce(directory, 2);
    expect(JSON.parse(readFileSync(join(directory, "summary.json"), "utf8"))).toMatchObject({
      state: "completed",
      steps: 8,
    });
    const again = await run("resume", directory); // case F5: at
    expect(again.code).toBe(3);
    expect(again.output).toContain("nothing to do");
    const above = await run("resume", directory, "--run.steps", "4"); // case F5: above
    expect(above.code).toBe(3);
    const further = await run("resume", directory, "--run.steps", "10");
    expect(further.output).toContain("resuming at 8 of 10");
    const { step, steps } = foldRun(eventsOf(directory));
    expect(step).toBe(10);
    // case F6: nothing was left over, so its first requests made step 9; the trainer scores them as the engine did.
    const [first] = steps.filter((event) => event.step === 9);
    expect(first!.metrics.staleness_max).toBe(0);
    expect(first!.metrics.logprob_gap_max).toBeLessThan(1e-4);
    await refusesChangedData(directory);
  });

  // case F6
  async function refusesChangedData(directory: string): Promise<void> {
    const [prompts, log] = [join(home, "quickstart/prompts.jsonl"), readFileSync(join(directory, "events.ndjson"))];
    const text = readFileSync(prompts, "utf8");
    writeFileSync(prompts, text.replace(/sort \d/, "sort 9"));
    const { code, output } = await run("resume", directory, "--run.steps", "12");
    writeFileSync(prompts, text);
    expect(code, output).toBe(2);
    expect(output).toMatch(
      /step 10 does not load under this recipe: data: \S+quickstart\/prompts.jsonl changed since it was written/,
    );
    expect(readFileSync(join(directory, "events.ndjson"))).toEqual(log);
  }

  it("killed before its first checkpoint, and between its last step and the export: the same run still", async () => {
    const known = knownRuns();
    let child = start("run", recipe);
    const killAt = async (wanted: (event: TimedEvent) => boolean) => {
      const ended = finished(child);
      const directory = await untilEvent(known, wanted);
      const processes = descendants(child.pid!);
      child.kill("SIGKILL");
      const { output } = await ended;
      await expectGone(processes);
      return { directory, output };
    };
    const { directory } = await killAt((event) => event.type === "phase" && event.name === "first sync");
    // The last checkpoint is written beside the last evaluation, which is to be the longer of the two.
    child = start("resume", directory, "--eval.n_samples_per_prompt", "64");
    const { output } = await killAt((event) => event.type === "checkpoint" && event.step === 8);
    expect(output).toContain("resuming at 0 of 8");
    expect(existsSync(join(directory, "export"))).toBe(false);
    const last = await run("resume", directory);
    expect(last.code, last.output).toBe(0);
    expect(last.output).toContain("resuming at 8 of 8");
    trainedOnce(directory, 2);
    const summary = JSON.parse(readFileSync(join(directory, "summary.json"), "utf8"));
    expect(summary).toMatchObject({ state: "completed", steps: 8, policy_version: 8, eval: { after: { step: 8 } } });
    expect(readdirSync(join(directory, "export"))).toContain("model.safetensors");
  });

  it("a checkpoint that cannot be written is an alarm, and the run goes on to its end", async () => {
    const known = knownRuns();
    const child = start("run", recipe);
    const ended = finished(child);
    const directory = await untilEvent(known, (event) => event.type === "phase");
    writeFileSync(join(directory, "checkpoints"), "in the way");
    const processes = descendants(child.pid!);
    const { code, output } = await ended;
    expect(code, output).toBe(0);
    await expectGone(processes);
    const alarms = eventsOf(directory).filter((event) => event.type === "health" && event.rule === "checkpoint");
    expect(alarms.map((event) => "step" in event && event.step)).toEqual([2, 4, 6, 8]);
    expect(alarms[0]).toMatchObject({ severity: "alarm", message: expect.stringMatching(/step-000002 could not be/) });
    expect(foldRun(eventsOf(directory))).toMatchObject({ state: "completed", step: 8 });
    expect(readdirSync(join(directory, "export"))).toContain("model.safetensors");
  });

  it("detached, goes on though whoever started it was killed before it began", async () => {
    const runs = join(home, "detached");
    const child = start("run", recipe, "--detach", "--run.steps", "1", "--run.dir", runs);
    const made = () => (existsSync(runs) ? readdirSync(runs) : []);
    await until("its log", () => made().length > 0);
    child.kill("SIGKILL");
    const state = () => {
      const id = made().find((name) => !name.endsWith(".log"));
      return id === undefined ? "running" : foldRun(eventsOf(join(runs, id))).state;
    };
    await until("its end", () => state() !== "running", 240);
    expect(state()).toBe("completed");
  });

  it("goes on when whoever read its output has left; sft has a checkpoint, too", async () => {
    const runs = join(home, "unread");
    const child = start("sft", join(home, "quickstart/warmup.yaml"), "--run.steps", "3", "--run.dir", runs);
    child.stdout!.destroy();
    const { code, output } = await finished(child);
    expect(code, output).toBe(0);
    const directory = join(runs, readdirSync(runs)[0]!);
    expect(foldRun(eventsOf(directory)).state).toBe("completed");
    const resumed = await run("resume", directory);
    expect([resumed.code, resumed.output]).toEqual([3, expect.stringContaining("is at step 3 of 3")]);
    const exported = await run("export", directory);
    expect([exported.code, exported.output]).toEqual([0, expect.stringContaining("step 3 is exported to")]);
  });

  it.each([
    ["start", (event: TimedEvent) => event.type === "phase" && event.name === "start", 1],
    ["train", (event: TimedEvent) => event.type === "step", 1],
    ["train, twice", (event: TimedEvent) => event.type === "step", 2],
  ])("Ctrl-C while it is at %s: exit code 130, a summary, no process left", async (_, wanted, times) => {
    const known = knownRuns();
    const child = start("run", recipe);
    const ended = finished(child);
    const directory = await untilEvent(known, wanted);
    const processes = descendants(child.pid!);
    for (let time = 0; time < times; time++) {
      child.kill("SIGINT");
      await until("the signal's event", () => eventsOf(directory).some(({ type }) => type === "warning"));
    }
    const { code, output } = await ended;
    expect(code, output).toBe(130);
    expect(JSON.parse(readFileSync(join(directory, "summary.json"), "utf8")).state).toBe("interrupted");
    if (times === 1) expect(output).toContain(`try next:\n  npx molt-runner resume ${relative(home, directory)}\n`);
    await expectGone(processes);
    const files = readdirSync(directory, { recursive: true, encoding: "utf8" });
    expect(files.filter((name) => /part|old|pid/.test(name))).toEqual([]);
  });

  it("an engine and then a rank killed: the same run to its end, every prompt consumed once", async () => {
    const known = knownRuns();
    const child = start("run", recipe, "--train.max_staleness", "0", "--eval.steps", "2", "--ckpt.max_num", "1");
    const ended = finished(child);
    const kill = (verb: string) =>
      process.kill(descendants(child.pid!).find(({ command }) => command.includes(` ${verb} `))!.pid, "SIGKILL");
    const directory = await untilEvent(known, (event) => event.type === "step" && event.step === 1);
    kill("serve");
    await untilEvent(known, (event) => event.type === "checkpoint" && event.step === 4);
    kill("rank");
    const { code, output } = await ended;
    expect(code, output).toBe(0);
    trainedOnce(directory, 2);
    const events = eventsOf(directory);
    const told = events.flatMap((event) =>
      (event.type === "engine" || event.type === "rank") && event.state !== "started" ? [event] : [],
    );
    expect(told.map(({ type, state }) => `${type} ${state}`)).toEqual(["engine died", "engine restarted", "rank died"]);
    expect(events.filter(({ type }) => type === "resumed")).toMatchObject([{ fromStep: 4, totalSteps: 8 }]);
    expect(told[0]!.message).toMatch(/^engine 0 was killed by SIGKILL/);
    expect(told[2]!.message).toMatch(/^rank 0 was killed by SIGKILL/);
    expect(foldRun(events)).toMatchObject({ state: "completed", step: 8, policyVersion: 8 });
    // The newest checkpoint is kept, and the best by its eval: the later of two as good.
    const accuracies = new Map<number, number>();
    for (const { step, metrics } of foldRun(events).evals) if (step > 0) accuracies.set(step, metrics.accuracy!);
    const best = [...accuracies].findLast(([, accuracy]) => accuracy === Math.max(...accuracies.values()))![0];
    const kept = [...new Set([best, 8])].map((step) => `step-00000${step}`);
    expect(readdirSync(join(directory, "checkpoints")).sort()).toEqual(kept.sort());
    // The engine that came back sampled with the trainer's weights.
    const steps = foldRun(events).steps.map(({ metrics }) => metrics.logprob_gap_max!);
    expect(Math.max(...steps)).toBeLessThan(1e-4);
  });

  it("stop ends a run in order; fork goes on from a step of it, elsewhere, with other keys", async () => {
    const known = knownRuns();
    const child = start("run", recipe, "--run.steps", "500", "--ckpt.max_num", "50");
    const ended = finished(child);
    const directory = await untilEvent(known, (event) => event.type === "checkpoint" && event.step >= 4);
    const stopped = await run("stop", directory);
    expect((await ended).code).toBe(130);
    expect(stopped).toMatchObject({
      code: 0,
      output: expect.stringMatching(/ended at step \d+: interrupted\ngo on with:/),
    });
    const { step } = foldRun(eventsOf(directory));
    expect(readdirSync(join(directory, "checkpoints"))).toContain(`step-${String(step).padStart(6, "0")}`);
    expect(await run("stop", directory)).toMatchObject({
      code: 3,
      output: expect.stringContaining("nobody is at work"),
    });

    const refused = await run(
      "fork",
      directory,
      "--run.seed",
      "4",
      "--actor.devices_per_node",
      "2",
      "--run.steps",
      "900",
    );
    expect(refused.code).toBe(2);
    expect(refused.output).toContain("run.seed: its prompts are in the order of seed 3");
    const absent = await run("fork", directory, "--step", "3");
    expect(absent).toMatchObject({ code: 2, output: expect.stringContaining("no complete checkpoint of step 3") });

    const before = readdirSync(join(home, "runs"));
    const forked = await run("fork", directory, "--step", "2", "--run.steps", "4", "--ckpt.max_mem", "1e-6");
    expect(forked.code, forked.output).toBe(0);
    const name = readdirSync(join(home, "runs")).find((one) => !before.includes(one))!;
    const events = eventsOf(join(home, "runs", name));
    const parent = directory.split("/").at(-1);
    expect(events.find(({ type }) => type === "forked")).toMatchObject({
      from: parent,
      step: 2,
      changed: ["run.steps", "ckpt.max_mem"],
    });
    expect(foldRun(events)).toMatchObject({ state: "completed", step: 4 });
    expect(foldRun(events).steps.map((one) => one.step)).toEqual([3, 4]);
    expect(readdirSync(join(home, "runs", name, "checkpoints"))).toEqual(["step-000004"]);
  });

  it.each(["serve", "rank"])("a killed %s process ends the run with its name, and nothing is left", async (victim) => {
    const known = knownRuns();
    const child = start("run", recipe, "--run.max_restarts", "0");
    const ended = finished(child);
    const directory = await untilEvent(known, (event) => event.type === "step" && event.step === 2);
    const processes = descendants(child.pid!);
    process.kill(processes.find(({ command }) => command.includes(` ${victim} `))!.pid, "SIGKILL");
    const { code, output } = await ended;
    expect(code, output).toBe(1);
    expect(output).toContain(victim === "serve" ? "engine 0 was killed by SIGKILL" : "rank 0 was killed by SIGKILL");
    await expectGone(processes);
    expect(foldRun(eventsOf(directory)).state).toBe("failed");
  });

  it("two ranks over Gloo and two engines train as one does", async () => {
    const shared = ["--run.steps", "2", "--train.max_staleness", "0"];
    const one = await run("run", recipe, ...shared, "--eval.steps", "-1", "--json");
    expect(one.code, one.output).toBe(0);
    const types = one.output
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line).type); // one value a line, nothing else
    expect([types[0], types.at(-1)]).toEqual(["started", "summary"]);
    const alone = gradientNorms(eventsOf(newestRun()));
    const two = await run("run", recipe, ...shared, "--actor.devices_per_node", "2", "--engine.count", "2");
    expect(two.code, two.output).toBe(0);
    const events = eventsOf(newestRun());
    const norms = gradientNorms(events);
    expect(norms).toHaveLength(2);
    expect(alone[0]).toBeGreaterThan(1e-3);
    // Seeds name rollouts, not engines or ranks: the batches are the same.
    norms.forEach((norm, step) => {
      expect(Math.abs(norm - alone[step]!)).toBeLessThan(1e-4 * alone[step]!);
    });
    expect(events.filter((event) => event.type === "sync").every((event) => event.engines === 2)).toBe(true);
  });
});

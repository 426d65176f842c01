/**
 * A quickstart whose engines, ranks, agents' threads and controller are killed at random for a while. Then it resumes
 * and ends: each prompt consumed once an epoch, a policy that learned, nothing left behind.
 */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs, withDeadline } from "../../src/deadline.ts";
import { uniform } from "../../src/engines/embedded/philox.ts";
import type { TimedEvent } from "../../src/telemetry/events.ts";
import { foldRun } from "../../src/telemetry/fold.ts";
import { readEvents } from "../../src/telemetry/log.ts";
import { childrenOf, commandOf, isAlive, until } from "../processes.ts";
import { Tally } from "../tally.ts";

export interface TierOptions {
  /** The built command line. */
  cli: string;
  recipes: string;
  agent: string;
  /** Of kills. */
  seconds: number;
  seed: number;
}

type Victim = "engine" | "rank" | "thread" | "hung thread" | "controller";

/** Twice as often as the others: engines and threads, which cost a run the least. */
const victims: Victim[] = ["engine", "engine", "thread", "thread", "hung thread", "rank", "controller"];
/** Between two kills, at least and at most. */
const [calmSeconds, mostCalmSeconds] = [2, 7];
const warmupSeconds = 300;
const endSeconds = 900;
/** Of the quickstart's held-out prompts; an untrained policy gets 0. */
const learned = 0.8;

/** Prints kills, restarts and lost work; resolves with the exit code and the closing line. */
export async function runTier(options: TierOptions): Promise<{ code: number; line: string }> {
  const home = mkdtempSync(join(tmpdir(), "molt-chaos-"));
  const chaos = new Chaos(options, home);
  process.once("exit", () => {
    chaos.end();
    rmSync(home, { recursive: true, force: true });
  });
  const tally = new Tally();
  await tally.check("a warm-up, then kills", () => chaos.rage());
  await tally.check("the run goes on to its end", () => chaos.finish());
  await tally.check("each prompt is consumed once an epoch", () => chaos.consumedOnce());
  await tally.check(`the policy learned: above ${learned} held out`, () => chaos.learned());
  await tally.check("what was killed was started again, under its name", () => chaos.answered());
  await tally.check("no process, no file is left", () => chaos.nothingLeft());
  chaos.report();
  return tally.end;
}

class Chaos {
  private readonly options: TierOptions;
  private readonly home: string;
  private readonly runs: string;
  private controller: ChildProcess | null = null;
  private output = "";
  private draws = 0;
  private readonly kills: Victim[] = [];
  private readonly known = new Set<number>();

  constructor(options: TierOptions, home: string) {
    this.options = options;
    this.home = home;
    this.runs = join(home, "runs");
  }

  async rage(): Promise<void> {
    const { recipes, agent, seconds, seed } = this.options;
    console.log(`${seconds} s of kills from seed ${seed}`);
    cpSync(recipes, join(this.home, "recipes"), { recursive: true });
    cpSync(agent, join(this.home, "recipes", "agent.ts"));
    const model = join(this.home, "model");
    const warmup = join(this.home, "recipes/quickstart/warmup.yaml");
    this.start("sft", warmup, "--run.dir", join(this.home, "sft"), "--ckpt.output_dir", model);
    assert.equal(await this.ended(warmupSeconds), 0, this.output);
    writeFileSync(join(this.home, "recipes/chaos.yaml"), recipe(this.runs, model));
    this.start("run", join(this.home, "recipes/chaos.yaml"));
    // Killed before, it would begin anew, which is asked of a user.
    await until("the first checkpoint", () => this.count("checkpoint") > 0, warmupSeconds);
    const end = Date.now() + seconds * 1000;
    while (Date.now() < end && this.isRunning) {
      await sleep(1000 * (calmSeconds + this.draw() * (mostCalmSeconds - calmSeconds)));
      await this.kill(victims[Math.floor(this.draw() * victims.length)]!);
    }
    assert.ok(this.kills.length > 0, "nothing was killed");
  }

  /** Nobody is killed any more; what had died is resumed. */
  async finish(): Promise<void> {
    for (const name of ["exit", "hang"]) rmSync(join(this.home, name), { force: true });
    if (!this.isRunning && foldRun(this.events()).state !== "completed") this.start("resume", this.directory);
    const code = this.controller && (await this.ended(endSeconds));
    assert.equal(code, 0, this.output.slice(-4000));
    assert.equal(foldRun(this.events()).state, "completed");
  }

  consumedOnce(): void {
    const groups = groupsOf(this.events());
    const { step } = foldRun(this.events());
    const epochs = new Map<number, Map<string, number>>();
    for (const { epoch, promptId } of groups.filter(({ requeued }) => !requeued)) {
      if (!epochs.has(epoch)) epochs.set(epoch, new Map());
      const counts = epochs.get(epoch)!;
      counts.set(promptId, (counts.get(promptId) ?? 0) + 1);
    }
    assert.equal(epochs.size, numEpochs);
    for (const [epoch, counts] of epochs) {
      const often = [...counts].filter(([, count]) => count !== 1);
      assert.deepEqual(often, [], `epoch ${epoch}`);
      assert.equal(counts.size, numPrompts, `prompts of epoch ${epoch}`);
    }
    const trained = groups.filter((group) => group.outcome === "trained" || group.reason === "no_signal").length;
    console.log(`         ${step} steps, ${groups.length} groups in ${epochs.size} epochs, ${trained} reached a batch`);
  }

  learned(): void {
    const { evals } = foldRun(this.events());
    const accuracy = evals.at(-1)?.metrics.accuracy ?? 0;
    console.log(`         held out: ${evals.find(({ step }) => step === 0)?.metrics.accuracy} to ${accuracy}`);
    assert.ok(accuracy > learned, `held out: ${accuracy}`);
  }

  answered(): void {
    assert.ok(this.kills.length > 0);
    for (const victim of this.kills) assert.ok(this.isAnswered(victim), victim);
  }

  async nothingLeft(): Promise<void> {
    await until("the run's processes to end", () => [...this.known].every((pid) => !isAlive(pid)));
    const files = readdirSync(this.directory, { recursive: true, encoding: "utf8" });
    assert.deepEqual(
      files.filter((name) => /\.part|\.old|owner\.pid|server\.json/.test(name)),
      [],
    );
    const memory = existsSync("/dev/shm") ? readdirSync("/dev/shm") : [];
    assert.deepEqual(
      memory.filter((name) => [...this.known].some((pid) => name.startsWith(`molt-${pid}-`))),
      [],
    );
  }

  /** Kills, restarts, and what was lost by them. */
  report(): void {
    const events = this.events();
    const count = (names: string[]) =>
      [...new Set(names)].map((name) => `${names.filter((one) => one === name).length} ${name}`);
    console.log(`killed: ${count(this.kills).join(", ")}`);
    const states = events.flatMap((event) =>
      (event.type === "engine" || event.type === "rank" || event.type === "worker") && event.state !== "started"
        ? [`${event.type} ${event.state}`]
        : [],
    );
    console.log(`told: ${count(states).join(", ")}, ${this.resumes} resumed by hand`);
    const lost = events.reduce(
      ({ at, steps }, event) => {
        if (event.type === "step") return { at: event.step, steps };
        return event.type === "resumed" ? { at: event.fromStep, steps: steps + at - event.fromStep } : { at, steps };
      },
      { at: 0, steps: 0 },
    );
    const dropped = groupsOf(events).filter(({ outcome, reason }) => outcome === "dropped" && reason !== "no_signal");
    const reasons = count(dropped.map(({ reason, requeued }) => `${reason}${requeued ? ", given back" : ""}`));
    console.log(`lost: ${lost.steps} steps trained again; groups dropped: ${reasons.join("; ") || "none"}`);
  }

  end(): void {
    for (const pid of this.known) if (isAlive(pid)) process.kill(pid, "SIGKILL");
  }

  private resumes = 0;

  /** Whether the run has told of one such kill; of every loss of a rank or the controller, that it goes on. */
  private isAnswered(victim: Victim): boolean {
    if (victim === "engine") return this.count("engine", "restarted") > 0;
    if (victim === "thread") return this.count("worker", "restarted") > 0;
    if (victim === "hung thread") return true; // found out by a time limit, perhaps after the last kill
    const ranks = this.count("rank", "died");
    return (victim === "controller" || ranks > 0) && this.count("resumed") >= this.resumes + ranks;
  }

  private count(type: string, state?: string): number {
    const isOne = (event: TimedEvent) =>
      event.type === type && (state === undefined || ("state" in event && event.state === state));
    return this.events().filter(isOne).length;
  }

  /** Whether the life at hand has come to a step. */
  private get hasStepped(): boolean {
    const types = this.events().map(({ type }) => type);
    return types.lastIndexOf("step") > types.lastIndexOf("resumed");
  }

  private get isRunning(): boolean {
    return this.controller !== null && this.controller.exitCode === null && this.controller.signalCode === null;
  }

  private get directory(): string {
    return join(this.runs, readdirSync(this.runs).sort()[0]!);
  }

  private events(): TimedEvent[] {
    if (!existsSync(this.runs) || readdirSync(this.runs).length === 0) return [];
    const path = join(this.directory, "events.ndjson");
    return existsSync(path) ? [...readEvents(path)] : [];
  }

  /** From 0 to 1, the same under one seed. */
  private draw(): number {
    return uniform(this.options.seed, this.draws++);
  }

  private async kill(victim: Victim): Promise<void> {
    if (!this.isRunning) {
      if (this.controller?.exitCode === 0) return;
      throw new Error(`the run ended by itself:\n${this.output.slice(-4000)}`);
    }
    // The first of its kind is given the time to be answered; the others come when they come.
    const isFirst = !this.kills.includes(victim);
    if (isFirst) await until("a step", () => this.hasStepped || !this.isRunning);
    if (victim === "controller") await until("the run to go on", () => this.isAnswered(victim) || !this.isRunning);
    if (!this.isRunning) return;
    this.watch();
    console.log(`         ${new Date().toISOString().slice(11, 19)} ${victim}`);
    this.kills.push(victim);
    if (victim === "thread") writeFileSync(join(this.home, "exit"), "");
    else if (victim === "hung thread") writeFileSync(join(this.home, "hang"), "");
    else if (victim === "controller") await this.killController();
    else this.killChild(victim === "engine" ? " serve " : " rank ");
    if (isFirst) await until(`an answer to it: ${victim}`, () => this.isAnswered(victim) || !this.isRunning);
  }

  private killChild(verb: string): void {
    const found = childrenOf(this.controller!.pid!).filter((pid) => commandOf(pid).includes(verb));
    const chosen = found[Math.floor(this.draw() * found.length)];
    if (chosen !== undefined) process.kill(chosen, "SIGKILL");
    else this.kills.pop(); // it is between two lives
  }

  private async killController(): Promise<void> {
    this.controller!.kill("SIGKILL");
    await this.ended(30);
    // Its children notice by their standard input.
    const children = () => [...this.known].filter(isAlive);
    await until("the killed controller's children to end", () => children().length === 0);
    this.start("resume", this.directory);
  }

  private start(...words: string[]): void {
    if (words[0] === "resume") this.resumes++;
    mkdirSync(this.runs, { recursive: true });
    const env = { ...process.env, MOLT_CHAOS: this.home };
    const child = spawn(process.execPath, [this.options.cli, ...words], {
      cwd: this.home,
      env,
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.controller = child;
    this.output = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text: string) => {
        this.output = (this.output + text).slice(-20_000);
      });
    }
    this.watch();
  }

  /** Remembers the run's processes. */
  private watch(): void {
    const { pid } = this.controller!;
    if (pid === undefined) return;
    this.known.add(pid);
    for (const child of childrenOf(pid)) this.known.add(child);
  }

  private async ended(seconds: number): Promise<number | null> {
    const child = this.controller!;
    const watching = setInterval(() => this.watch(), deadlineMs(1));
    const gone = new Promise<void>((resolve) => {
      if (child.exitCode !== null || child.signalCode !== null) resolve();
      else child.once("exit", () => resolve());
    });
    try {
      await withDeadline(gone, seconds, `the run to end; its last words:\n${this.output.slice(-4000)}`);
    } finally {
      clearInterval(watching);
    }
    return child.exitCode;
  }
}

/** What became of groups; a resume supersedes what came after its step. */
function groupsOf(events: TimedEvent[]) {
  let groups: Extract<TimedEvent, { type: "group" }>[] = [];
  for (const event of events) {
    if (event.type === "resumed") groups = groups.filter(({ step }) => step <= event.fromStep);
    if (event.type === "group") groups.push(event);
  }
  return groups;
}

const [numPrompts, numEpochs] = [1600, 4];

/** The quickstart over a part of its prompts, several times: 200 steps. */
const recipe = (runs: string, model: string) => `
extends: quickstart.yaml
run: { name: chaos, dir: ${runs}, steps: null, max_restarts: 100 }
actor: { model_name_or_path: ${model} }
data: { max_samples: ${numPrompts}, epochs: ${numEpochs} }
rollout: { workers: 2, turn_timeout: 10, timeout: 60 }
train: { agent_path: agent.ts }
engine: { count: 2 }
ckpt: { save_steps: 5 }
`;

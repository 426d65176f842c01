/** Real clients, as command agents, against the real gateway with a scripted engine. One test each. */
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { copyFile, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runClientRollout } from "../../src/agents/client-runner.ts";
import { commandAgent } from "../../src/agents/command-agent.ts";
import { Gateway } from "../../src/agents/gateway.ts";
import type { RolloutTask } from "../../src/agents/rollout.ts";
import type { FailedRollout, Rollout } from "../../src/agents/types.ts";
import { Tokenizer } from "../../src/data/tokenizer.ts";
import { deadlineMs, withDeadline } from "../../src/deadline.ts";
import { messageOf } from "../../src/errors.ts";
import { until } from "../processes.ts";
import { Tally } from "../tally.ts";
import { type Case, cases, type Places } from "./cases.ts";
import { ScriptedEngine } from "./engine.ts";

export interface TierOptions extends Pick<Places, "clients"> {
  /** Rejects with an error whose `network` says whether the network is to blame. */
  install(): Promise<Pick<Places, "node" | "bin" | "python">>;
  /** The folder of a tokenizer with a template for tools. */
  tokenizer: string;
  /** A part of the names to run. */
  only: string;
}

const limits = {
  maxLen: 400_000,
  maxTurns: 8,
  maxRequests: 32,
  rolloutSeconds: 100,
  turnSeconds: 30,
  toolSeconds: 30,
  rewardSeconds: 30,
  heldSeconds: 30,
};
/** The rollout's time, the grader's and what either is granted beyond. */
const caseSeconds = 150;
const task: RolloutTask = {
  row: { id: "rows:1", messages: [{ role: "user", content: "2 + 3?" }], label: "5", fields: {} },
  groupId: "g",
  rolloutId: "g/0",
  attempt: 0,
  sampling: { temperature: 1, topP: 1, topK: 0, maxNewTokens: null },
};

/** Prints a line a test; resolves with the exit code and the closing line. What it made goes with the process. */
export async function runTier({ install, clients, tokenizer: source, only }: TierOptions) {
  const chosen = cases.filter(({ name }) => name.includes(only));
  const tally = new Tally();
  const root = mkdtempSync(join(tmpdir(), "molt-agents-"));
  const [model, rollouts] = [join(root, "model"), join(root, "rollouts")];
  process.once("exit", () => {
    killThoseOf(root);
    rmSync(root, { recursive: true, force: true });
  });
  try {
    const places = { ...(await install()), clients, model };
    await writeModel(source, model);
    await mkdir(rollouts);
    const tokenizer = await Tokenizer.load(model);
    for (const one of chosen) await tally.check(one.name, () => runCase(one, places, tokenizer, rollouts));
  } catch (error) {
    const isNetwork = (error as { network?: boolean }).network === true;
    tally[isNetwork ? "skipped" : "failed"] = chosen.length;
    console.log(`${isNetwork ? "not run" : "failed"}: ${messageOf(error)}`);
  }
  return tally.end;
}

/** Qwen3's tokens beyond ChatML's, without which verifiers does not render for it. */
const marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"];

/** The tokenizer, and the marks. */
async function writeModel(source: string, folder: string): Promise<void> {
  await mkdir(folder);
  await copyFile(join(source, "tokenizer_config.json"), join(folder, "tokenizer_config.json"));
  const tokenizer = JSON.parse(await readFile(join(source, "tokenizer.json"), "utf8"));
  const [shape] = tokenizer.added_tokens;
  const first = 1 + Math.max(...(Object.values(tokenizer.model.vocab) as number[]));
  for (const [at, content] of marks.entries()) {
    tokenizer.added_tokens.push({ ...shape, id: first + at, content, special: false });
  }
  await writeFile(join(folder, "tokenizer.json"), JSON.stringify(tokenizer));
}

/** Ids of processes that a rollout in `folder` started: their home is there, whatever group they have gone to. */
function processesOf(folder: string): number[] {
  const ids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  return ids.map(Number).filter((id) => homeOf(id).startsWith(folder));
}

function homeOf(id: number): string {
  try {
    return /(?:^|\0)HOME=([^\0]*)/.exec(readFileSync(`/proc/${id}/environ`, "utf8"))?.[1] ?? "";
  } catch {
    return ""; // it has ended, or is somebody else's
  }
}

function killThoseOf(folder: string): void {
  for (const id of processesOf(folder)) {
    try {
      process.kill(id, "SIGKILL");
    } catch {
      // It has ended meanwhile.
    }
  }
}

async function runCase(one: Case, places: Places, tokenizer: Tokenizer, folder: string): Promise<void> {
  const gateway = await Gateway.start(tokenizer, () => {});
  try {
    const options = { command: one.command(places), grader: one.grader ?? null, folder, rewardSeconds: 30 };
    const engine = new ScriptedEngine(tokenizer, one.answer);
    const late = AbortSignal.timeout(deadlineMs(caseSeconds));
    const rollout = runClientRollout(commandAgent(options), gateway, task, engine.context(limits), late);
    const outcome = await withDeadline(rollout, caseSeconds + 10, one.name);
    assert.ok("segments" in outcome, (outcome as FailedRollout).message);
    check(one, engine, outcome);
    assert.deepEqual(await readdir(folder), [], "files that it left");
    await until("the processes that it started to end", () => processesOf(folder).length === 0, 10);
  } finally {
    await gateway.stop();
    killThoseOf(folder);
  }
}

function check(one: Case, engine: ScriptedEngine, rollout: Rollout): void {
  assert.equal(rollout.reward, 1, "the reward");
  assert.equal(engine.check(rollout), 0, "tokens that were rejected");
  // A tool turn is one row of two replies.
  const rows = rollout.segments.map(({ turns }) => turns.length);
  const whole = rows.filter((turns) => turns === 2).length;
  assert.equal(whole, one.conversations, `rows of two replies, of rows with ${rows}`);
  if (!one.hasSideRequests) assert.equal(rows.length, whole, `rows with ${rows} replies`);
}

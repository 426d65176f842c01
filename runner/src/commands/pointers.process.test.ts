/** A few steps of recipes/pointers.yaml as real processes: several turns an episode, with a tool between them. */
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Group, Rollout, Segment } from "../agents/types.ts";
import { deadlineMs } from "../deadline.ts";
import { readEvents } from "../telemetry/log.ts";
import { readRollouts } from "../telemetry/shards.ts";

const root = fileURLToPath(new URL("../../../", import.meta.url));
const maxTurns = 3;
let home: string;
let directory: string;
let output: string;

const call = (...words: string[]) =>
  promisify(execFile)(process.execPath, [process.env.MOLT_CLI!, ...words], { cwd: home, timeout: deadlineMs(200) });

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), "pointers-"));
  cpSync(join(root, "recipes"), join(home, "recipes"), { recursive: true });
  await call("sft", "recipes/pointers/warmup.yaml", "--run.dir", "sft", "--run.steps", "60");
  // Unfiltered: with so short a warm-up a batch may have no signal, and a skipped step has no metrics.
  const flags = ["--run.steps", "4", "--rollout.batch_size", "8", "--algo.dynamic_filtering", "off"];
  flags.push("--rollout.max_turns", String(maxTurns));
  ({ stdout: output } = await call("run", "recipes/pointers.yaml", ...flags, "--eval.sampled", "false"));
  directory = join(home, "runs", readdirSync(join(home, "runs")).find((name) => /^pointers-\d/.test(name))!);
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

interface Task {
  prompt: string;
  table: Record<string, string>;
  label: string;
}

const jsonLines = (path: string) => readFileSync(path, "utf8").trim().split("\n");
/** The ids of recipes/quickstart/make_tokenizer.py: six special tokens, then printable ASCII. */
const special = ["<pad>", "<bos>", "<user>", "<asst>", "<tool>", "<end>"];
const textOf = (id: number) => special[id] ?? String.fromCharCode(id - special.length + 32);
const said = (tokens: Int32Array, start: number, end: number) => Array.from(tokens.slice(start, end), textOf).join("");

/** The rollouts of step N with what they are about. */
async function rolloutsOf(step: number): Promise<{ rollout: Rollout; task: Task }[]> {
  const tasks = jsonLines(join(home, "recipes/pointers/prompts.jsonl")).map((line) => JSON.parse(line) as Task);
  const lineOf = ({ promptId }: Group) => Number(promptId.replace("prompts:", "")) - 1;
  const found: { rollout: Rollout; task: Task }[] = [];
  for await (const { group, dropped } of readRollouts(directory, { step })) {
    if (dropped?.reason === "eval") continue;
    for (const rollout of group.rollouts) found.push({ rollout, task: tasks[lineOf(group)]! });
  }
  return found;
}

/** What an episode with these replies is, in text and in reward, told by the task's rules. */
function tell({ prompt, table, label }: Task, replies: string[]) {
  let text = `<bos><user>${prompt}<end>`;
  let [reward, stop] = [0, "max_turns"];
  for (const [turn, reply] of replies.entries()) {
    text += `<asst>${reply}`;
    const key = /^get ([a-d])<end>$/.exec(reply)?.[1];
    if (key === undefined) [reward, stop] = [reply === `=${label}<end>` ? 1 : 0, "env_done"];
    else if (turn < replies.length - 1) text += `<tool>${table[key]}<end>`;
  }
  return { text, reward, stop };
}

function expectSampledOnly({ tokens, mask, logprobs, versions, turns }: Segment, oldest: number, newest: number): void {
  const sampled = (t: number) => turns.some(({ start, end }) => t >= start && t < end);
  for (const [t] of tokens.entries()) {
    expect(mask[t]).toBe(Number(sampled(t)));
    expect(Number.isFinite(logprobs[t])).toBe(sampled(t));
    if (!sampled(t)) expect(versions[t]).toBe(-1);
    else {
      expect(versions[t]).toBeGreaterThanOrEqual(oldest);
      expect(versions[t]).toBeLessThanOrEqual(newest);
    }
  }
}

test("one row an episode: what was sampled is trained, what the tool said is context, as the rules tell", async () => {
  const ends = new Set<string>();
  for (const step of [1, 2, 3, 4]) {
    for (const { rollout, task } of await rolloutsOf(step)) {
      expect(rollout.segments).toHaveLength(1);
      const [segment] = rollout.segments as [Segment];
      const { tokens, turns } = segment;
      const replies = turns.map(({ start, end }) => said(tokens, start, end));
      const { text, reward, stop } = tell(task, replies);
      expect(said(tokens, 0, tokens.length)).toBe(text);
      expect(rollout).toMatchObject({ reward, stop });
      expect(turns.length).toBeLessThanOrEqual(maxTurns);
      expect(new Set(turns.map((turn) => turn.callId)).size).toBe(turns.length);
      for (const [turn, { start, end, stop }] of turns.entries()) {
        expect(end - start).toBeLessThanOrEqual(6);
        expect(stop).toBe(replies[turn]!.endsWith("<end>") ? "stop" : "length");
      }
      expectSampledOnly(segment, Math.max(0, step - 2), step - 1);
      ends.add(`${stop} after ${turns.length}`);
    }
  }
  expect([...ends]).toEqual(expect.arrayContaining(["env_done after 2", "env_done after 3", `max_turns after 3`]));
});

test("metrics count tokens and turns over whole episodes", async () => {
  const events = [...readEvents(join(directory, "events.ndjson"))];
  const steps = events.filter((event) => event.type === "step");
  const funnels = events.filter((event) => event.type === "funnel");
  expect(steps.map(({ step }) => step)).toEqual([1, 2, 3, 4]);
  // invariant 1: what the trainer counted is what the trajectories say.
  expect(funnels.map(({ trained, rows }) => [trained, rows])).toEqual(
    steps.map(({ metrics }) => [metrics.tokens_trained, metrics.rows]),
  );
  for (const { step, metrics } of steps) {
    const rollouts = (await rolloutsOf(step)).map(({ rollout }) => rollout);
    const mean = (value: (rollout: Rollout) => number) =>
      rollouts.reduce((sum, rollout) => sum + value(rollout), 0) / rollouts.length;
    const tokens = ({ segments }: Rollout) => segments[0]!.turns.reduce((sum, { start, end }) => sum + end - start, 0);
    expect(metrics.turns).toBeCloseTo(mean(({ segments }) => segments[0]!.turns.length));
    expect(metrics.response_length).toBeCloseTo(mean(tokens));
    expect(metrics.reward).toBeCloseTo(mean(({ reward }) => reward));
    expect(metrics["stop/max_turns"] ?? 0).toBeCloseTo(mean(({ stop }) => Number(stop === "max_turns")));
    if (metrics.staleness_max === 0) expect(metrics.logprob_gap_max).toBeLessThan(1e-4);
  }
  expect(steps[0]!.metrics.staleness_max).toBe(0);
});

test("an episode is shown as text, tool and all", async () => {
  const shown = [...readEvents(join(directory, "events.ndjson"))].filter((event) => event.type === "sample");
  expect(shown.map(({ step }) => step)).toEqual([1, 2, 4]);
  for (const { prompt, reply, step, reward } of shown) {
    const [{ rollout, task }] = (await rolloutsOf(step)) as [{ rollout: Rollout; task: Task }];
    const [{ tokens, turns }] = rollout.segments as [Segment];
    expect(prompt).toBe(`<bos><user>${task.prompt}<end><asst>`);
    expect(reply).toBe(said(tokens, turns[0]!.start, tokens.length));
    expect(output).toContain(`sample of step ${step}, reward ${reward.toFixed(3)}: "${prompt}" → "${reply}"`);
  }
});

test("the generator writes the committed files again", async () => {
  const folder = join(home, "recipes/pointers");
  const names = ["warmup.jsonl", "prompts.jsonl", "heldout.jsonl"];
  for (const name of names) rmSync(join(folder, name));
  await promisify(execFile)(process.execPath, [join(folder, "make_data.mjs")], { timeout: deadlineMs(60) });
  for (const name of names) {
    expect(readFileSync(join(folder, name))).toEqual(readFileSync(join(root, "recipes/pointers", name)));
  }
});

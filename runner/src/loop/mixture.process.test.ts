/** A mixture of experts with real processes: routes from engine to ranks, experts over two of them, and back to one. */
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { readEvents } from "../telemetry/log.ts";
import { readRollouts } from "../telemetry/shards.ts";

const shipped = fileURLToPath(new URL("../../../recipes", import.meta.url));
let home: string;

const recipe = `
run: { name: mixture, dir: runs, seed: 5, steps: 2 }
actor:
  model_name_or_path: mixture/model
  init: random
  adam: { lr: 0.003 }
  aux_loss_coef: 0.01
  devices_per_node: 2
fsdp: { ep_size: 2 }
data: { prompt_dataset: quickstart/prompts.jsonl, input_key: prompt, label_key: label, max_len: 64, max_samples: 32 }
rollout: { batch_size: 4, n_samples_per_prompt: 2, max_new_tokens: 6, max_turns: 1 }
train: { agent_path: varied.ts, max_staleness: 0, routing_replay: true }
ckpt: { save_steps: 1 }
`;
/** Rewards that differ between random replies. */
const agent = `
import { type Action, Env, type StepResult } from "molt-runner";
export default class extends Env {
  step({ text }: Action): StepResult {
    return { reward: (text.charCodeAt(0) || 0) / 64, done: true };
  }
}
`;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "mixture-"));
  for (const name of ["quickstart", "mixture"]) cpSync(join(shipped, name), join(home, name), { recursive: true });
  writeFileSync(join(home, "mixture.yaml"), recipe);
  writeFileSync(join(home, "varied.ts"), agent);
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const start = promisify(execFile);
const molt = (...words: string[]) => start(process.execPath, [process.env.MOLT_CLI!, ...words], { cwd: home });
const eventsOf = (run: string) => [...readEvents(join(run, "events.ndjson"))];

it("routes are replayed on two ranks with half of the experts each, and the run goes on on one with all", async () => {
  await molt("run", "mixture.yaml");
  const run = join(home, "runs", readdirSync(join(home, "runs"))[0]!);
  await molt("resume", run, "--run.steps=4", "--actor.devices_per_node=1", "--fsdp.ep_size=1");
  const events = eventsOf(run);
  const steps = events.flatMap((event) => (event.type === "step" ? [event.metrics] : []));
  expect(steps).toHaveLength(4);
  for (const metrics of steps) {
    // In float32 engine and trainer differ by rounding: hardly a choice is another, and none is once they are replayed.
    expect(metrics.route_mismatch).toBeLessThan(0.01);
    expect(metrics.logprob_gap_max).toBeLessThan(1e-3);
    expect(metrics.logprob_gap_live).toBeGreaterThanOrEqual(0);
    // Of each of two layers 1 where all experts are equally likely, and 8 / 2 where the same two are always.
    expect(metrics.balance_loss).toBeGreaterThan(1.5);
    expect(metrics.balance_loss).toBeLessThan(8);
  }
  const restored = events.find((event) => event.type === "phase" && event.name.startsWith("restored"));
  expect(restored).toMatchObject({ detail: expect.stringContaining("weights and optimizer of 2 ranks at update 2") });
  for await (const { group } of readRollouts(run)) {
    expect(group.rollouts.flatMap(({ segments }) => segments).every((segment) => !("routes" in segment))).toBe(true);
  }
});

/** What a recipe says of algorithms, with real processes: the quickstart's model from random weights on two ranks. */
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { readEvents } from "../telemetry/log.ts";

const shipped = fileURLToPath(new URL("../../../recipes/quickstart", import.meta.url));
let home: string;

const recipe = `
run: { name: own, dir: runs, seed: 5, steps: 2 }
actor:
  model_name_or_path: quickstart/model
  init: random
  adam: { lr: 0.05 }
  devices_per_node: 2
  loss_mode: ./own/loss.ts
data: { prompt_dataset: quickstart/prompts.jsonl, input_key: prompt, label_key: label, max_len: 64, max_samples: 16 }
rollout: { batch_size: 4, n_samples_per_prompt: 3, max_new_tokens: 6, max_turns: 1 }
train: { agent_path: quickstart/varied.ts, max_staleness: 0, updates_per_batch: 2 }
algo: { advantage: { estimator: ./own/estimator.ts }, kl: { init_coef: 0.1, target: 0.001, horizon: 120 } }
ckpt: { save_steps: 1 }
`;
const estimator = `import { type AdvantageEstimator, centred, perGroup } from "molt-runner";
const own: AdvantageEstimator = (rollouts) => perGroup(rollouts, centred);
export default own;
`;
const loss = `import type { PolicyLoss } from "molt-runner";
const own: PolicyLoss = ({ logp, old, advantages }) => {
  return { loss: logp.sub(old).exp().mul(advantages).neg(), clipped: null };
};
export default own;
`;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "own-"));
  cpSync(shipped, join(home, "recipe/quickstart"), { recursive: true });
  const agent = readFileSync(join(shipped, "agent.ts"), "utf8");
  // Rewards that differ between random replies.
  const varied = agent.replace("action.text === row.label ? 1 : 0", "(action.text.charCodeAt(0) || 0) / 64");
  expect(varied).not.toBe(agent);
  writeFileSync(join(home, "recipe/quickstart/varied.ts"), varied);
  writeFileSync(join(home, "recipe/own.yaml"), recipe);
  mkdirSync(join(home, "recipe/own"));
  writeFileSync(join(home, "recipe/own/estimator.ts"), estimator);
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const start = promisify(execFile);
const molt = (...words: string[]) => start(process.execPath, [process.env.MOLT_CLI!, ...words], { cwd: home });

it("a recipe's own files train, and the coefficient of the KL goes on from its checkpoint", async () => {
  writeFileSync(join(home, "recipe/own/loss.ts"), loss);
  await molt("run", "recipe/own.yaml");
  const [run] = readdirSync(join(home, "runs"));
  const directory = join(home, "runs", run!);
  await molt("resume", directory, "--run.steps=3");
  const steps = [...readEvents(join(directory, "events.ndjson"))].filter((event) => event.type === "step");
  // By hand: far above its target, a fifth of 12 rollouts / 120 more each step.
  const coefficients = steps.map(({ metrics }) => metrics.kl_coef);
  [0.1, 0.102, 0.10404].forEach((value, step) => {
    expect(coefficients[step]).toBeCloseTo(value, 10);
  });
  expect(steps.every(({ metrics }) => metrics.kl! > 0.001)).toBe(true);
});

it("what a recipe's loss throws in a rank ends the run at the file's own line", async () => {
  writeFileSync(join(home, "recipe/own/loss.ts"), loss.replace("advantages)", "(undefined as never as Tensors).none)"));
  const failed = await molt("run", "recipe/own.yaml").catch((error) => error);
  expect(failed.code).toBe(1);
  expect(failed.stderr).toMatch(/own\/loss\.ts:3:\d+ actor\.loss_mode: Cannot read properties of undefined/);
});

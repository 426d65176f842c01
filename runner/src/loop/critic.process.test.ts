/** gae and on_policy_distill with real processes: tiny models, two ranks. */
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { readEvents } from "../telemetry/log.ts";

const shipped = fileURLToPath(new URL("../../../recipes", import.meta.url));
let home: string;

const data = `
data: { prompt_dataset: quickstart/prompts.jsonl, input_key: prompt, label_key: label, max_len: 64, max_samples: 16 }
rollout: { batch_size: 4, n_samples_per_prompt: 2, max_new_tokens: 6, max_turns: 1 }
train: { agent_path: quickstart/varied.ts, max_staleness: 0, updates_per_batch: 2 }
`;
const critic = `
run: { name: critic, dir: runs, seed: 5, steps: 4, deterministic: true }
actor:
  { model_name_or_path: quickstart/model, init: random, adam: { lr: 0.01 }, lr_warmup_ratio: 0, freezing_steps: 1 }
critic: { adam: { lr: 0.02 }, lr_warmup_ratio: 0 }
algo: { advantage: { estimator: gae, lam: 0.9 } }
ckpt: { save_steps: 1, max_num: 9 }${data}`;
const distill = `
run: { name: distill, dir: runs, seed: 5, steps: 3 }
actor: { model_name_or_path: distill/student, init: random, adam: { lr: 0.01 }, devices_per_node: 2 }
ref: { model_name_or_path: teacher }
algo: { advantage: { estimator: on_policy_distill }, kl: { init_coef: 0.5, use_loss: false, estimator: k1 } }${data}`;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "critic-"));
  for (const name of ["quickstart", "distill"]) cpSync(join(shipped, name), join(home, name), { recursive: true });
  const agent = readFileSync(join(home, "quickstart/agent.ts"), "utf8");
  // Rewards that differ between random replies.
  const varied = agent.replace("action.text === row.label ? 1 : 0", "(action.text.charCodeAt(0) || 0) / 64");
  expect(varied).not.toBe(agent);
  writeFileSync(join(home, "quickstart/varied.ts"), varied);
  writeFileSync(join(home, "critic.yaml"), critic);
  writeFileSync(join(home, "distill.yaml"), distill);
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const start = promisify(execFile);
const molt = (...words: string[]) => start(process.execPath, [process.env.MOLT_CLI!, ...words], { cwd: home });
const runOf = (name: string) =>
  join(home, "runs", readdirSync(join(home, "runs")).find((one) => one.startsWith(name))!);
const metricsOf = (run: string) =>
  [...readEvents(join(run, "events.ndjson"))].flatMap((event) => (event.type === "step" ? [event.metrics] : []));

it("case F4: a critic learns before the policy does, and both go on from a checkpoint bit by bit", async () => {
  await molt("run", "critic.yaml", "--run.name=whole");
  await molt("run", "critic.yaml", "--run.name=broken", "--run.steps=2");
  await molt("resume", runOf("broken"), "--run.steps=4");
  const shards = (name: string, step: number) => {
    const directory = join(runOf(name), "checkpoints", `step-00000${step}`);
    const files = readdirSync(directory).filter((file) => file.endsWith(".safetensors"));
    expect(files.sort()).toEqual(["critic-rank0.safetensors", "rank0.safetensors"]);
    return files.map((file) => readFileSync(join(directory, file)).toString("base64"));
  };
  expect(shards("broken", 4)).toEqual(shards("whole", 4));
  const steps = metricsOf(runOf("whole"));
  // In the first step, of two updates, the critic alone has moved.
  expect(steps.map(({ lr }) => lr)).toEqual([undefined, 0.01, 0.01, 0.01]);
  expect(steps.map(({ critic_lr }) => critic_lr)).toEqual([0.02, 0.02, 0.02, 0.02]);
  expect(steps.every(({ value_loss, critic_grad_norm }) => value_loss! > 0 && critic_grad_norm! > 0)).toBe(true);
  expect(steps.at(-1)!.explained_variance).toBeLessThanOrEqual(1);
  await molt("run", "critic.yaml", "--run.name=two", "--run.steps=2", "--actor.devices_per_node=2");
  // case C4: a second rank changes nothing of the first step.
  const [two] = metricsOf(runOf("two"));
  for (const name of ["value_loss", "value_mean", "critic_grad_norm"]) {
    expect(Math.abs(two![name]! / steps[0]![name]! - 1), name).toBeLessThan(1e-4);
  }
  const [policy] = ["whole", "broken"].map((name) => shards(name, 1)[1]);
  expect(policy).not.toBe(shards("whole", 2)[1]);
});

it("a student learns from a larger teacher on two ranks; another tokenizer is refused by name", async () => {
  await molt("sft", "quickstart/warmup.yaml", "--run.steps=2", `--ckpt.output_dir=${join(home, "teacher")}`);
  await molt("run", "distill.yaml");
  for (const { advantage_mean, kl, reward } of metricsOf(runOf("distill-"))) {
    expect(kl).toBeGreaterThan(0);
    // Half of what the teacher gives it more, on the average, whatever the rewards. The second update has moved on.
    expect(Math.abs(advantage_mean! + 0.5 * kl!)).toBeLessThan(0.2 * kl!);
    expect(reward).toBeGreaterThan(0);
  }
  const file = join(home, "teacher/tokenizer.json");
  const tokenizer = readFileSync(file, "utf8");
  const swapped = tokenizer.replace('"a"', '"\\u0000"').replace('"b"', '"a"').replace('"\\u0000"', '"b"');
  expect(swapped).not.toBe(tokenizer);
  writeFileSync(file, swapped);
  const refused = await molt("check", "distill.yaml").catch((error) => error);
  expect(refused.code).toBe(2);
  expect(refused.stderr).toMatch(/distill\.yaml:\d+:\d+ ref\.model_name_or_path: 2 tokens have other ids than in the/);
});

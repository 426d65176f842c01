/** The comparisons. Each yields rows of the report as they come. */
import { execFile } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { pythonPath } from "molt-native/setup/locate.mjs";
import { deadlineMs } from "../src/deadline.ts";
import { RunnerError } from "../src/errors.ts";
import { readEvents } from "../src/telemetry/log.ts";
import { alternate, attempt, type Row } from "./compare.ts";
import { python } from "./models.ts";
import { type DecodeAnswer, Side, sharedEnvironment } from "./side.ts";

const call = promisify(execFile);

export interface Setting {
  root: string;
  log: (line: string) => void;
}

export type Checkpointing = "full" | "selective" | "none";

export interface DecodePlan {
  model: string;
  dtypes: string[];
  threads: number[];
  batches: number[];
  prompt: number;
  tokens: number;
  repetitions: number;
}

function openSides(
  { root }: Setting,
  model: string,
  dtype: string,
  pages: number,
  checkpoint: Checkpointing = "full",
): { ours: Side; theirs: Side } {
  const bench = join(root, "runner/bench");
  const [ourArgs, theirArgs] = [
    [join(bench, "dist/ours.js"), model, dtype, String(pages), checkpoint],
    [join(bench, "theirs.py"), model, dtype],
  ];
  return {
    ours: new Side({ name: "ours", command: process.execPath, args: ourArgs }),
    theirs: new Side({ name: "transformers", command: pythonPath(), args: theirArgs }),
  };
}

/** Any ids will do: what is measured does not depend on them. */
function someRows(count: number, length: number): number[][] {
  return Array.from({ length: count }, (_, row) =>
    Array.from({ length }, (_, column) => 3 + ((row * 7919 + column * 104729) % 499)),
  );
}

const threadsText = (count: number) => `${count} thread${count === 1 ? "" : "s"}`;

export async function* decoding(setting: Setting, plan: DecodePlan): AsyncGenerator<Row> {
  for (const dtype of plan.dtypes) {
    const pages = Math.max(...plan.batches) * Math.ceil((plan.prompt + plan.tokens) / 16);
    const { ours, theirs } = openSides(setting, plan.model, dtype, pages);
    try {
      for (const threads of plan.threads) {
        yield* decodeBeside(setting, plan, { ours, theirs, dtype, threads });
        yield* decodeBesideVllm(setting, plan, { ours, dtype, threads });
      }
    } finally {
      await Promise.all([ours.stop(), theirs.stop()]);
    }
  }
}

async function* decodeBeside(
  setting: Setting,
  { batches, prompt, tokens, repetitions }: DecodePlan,
  { ours, theirs, dtype, threads }: { ours: Side; theirs: Side; dtype: string; threads: number },
): AsyncGenerator<Row> {
  for (const batch of batches) {
    const request = { op: "decode", threads, prompts: someRows(batch, prompt), tokens } as const;
    const name = `${dtype}, batch ${batch}, ${threadsText(threads)}`;
    const common = { peer: theirs.name, unit: "ms", name } as const;
    setting.log(`decoding: ${name}, beside ${theirs.name}`);
    yield* await attempt({ ...common, group: "decode" }, setting.log, async () => {
      const ask = (side: Side) => () => side.ask(request);
      const taken = await alternate(repetitions, ask(ours), ask(theirs));
      const pair = (value: (answer: DecodeAnswer) => number) => ({
        ours: taken.ours.map(value),
        theirs: taken.theirs.map(value),
      });
      const each = 1000 / (tokens - 1);
      const cpu = pair((answer) => answer.cpu * each);
      return [
        { ...common, group: "decode", ...pair((answer) => answer.decode * each), cpu },
        { ...common, group: "prompt", ...pair((answer) => answer.prompt * 1000) },
      ];
    });
  }
}

/** `MOLT_BENCH_VLLM` names a Python that has vLLM for CPU, which comes with its own torch. */
async function* decodeBesideVllm(
  setting: Setting,
  plan: DecodePlan,
  { ours, dtype, threads }: { ours: Side; dtype: string; threads: number },
): AsyncGenerator<Row> {
  const command = process.env.MOLT_BENCH_VLLM;
  if (!command) {
    const notRun = "not run: vLLM is not installed (MOLT_BENCH_VLLM names a Python that has it)";
    const name = `${dtype}, ${threadsText(threads)}`;
    yield { group: "decode", name, peer: "vLLM", unit: "ms", ours: [], theirs: [], notRun };
    return;
  }
  const cores = threads === 1 ? "0" : `0-${threads - 1}`;
  const args = [join(setting.root, "runner/bench/vllm_side.py"), plan.model, dtype, String(Math.max(...plan.batches))];
  const theirs = new Side({ name: "vLLM", command, args, env: { VLLM_CPU_OMP_THREADS_BIND: cores } });
  try {
    yield* decodeBeside(setting, plan, { ours, theirs, dtype, threads });
  } finally {
    await theirs.stop();
  }
}

export interface TrainCase {
  dtype: string;
  rows: number;
  length: number;
  threads: number;
}

/** Each case in processes of its own, so that their peak memory is the case's. */
export async function* training(
  setting: Setting,
  plan: { model: string; cases: TrainCase[]; repetitions: number; checkpoints?: Checkpointing[] },
): AsyncGenerator<Row> {
  for (const { dtype, rows, length, threads } of plan.cases) {
    for (const checkpoint of plan.checkpoints ?? (["full", "none"] as const)) {
      const layers = { full: "recomputed", selective: "kept in part", none: "kept" }[checkpoint];
      const name = `${dtype}, ${rows} rows of ${length}, ${threadsText(threads)}, layers ${layers}`;
      const common = { name, peer: "transformers" } as const;
      setting.log(`training: ${name}`);
      const { ours, theirs } = openSides(setting, plan.model, dtype, 0, checkpoint);
      try {
        yield* await attempt({ ...common, group: "train", unit: "s" }, setting.log, async () => {
          const request = { op: "train", threads, rows: someRows(rows, length) } as const;
          const ask = (side: Side) => () => side.ask(request);
          const taken = await alternate(plan.repetitions, ask(ours), ask(theirs));
          const pair = (value: (answer: (typeof taken.ours)[number]) => number) => ({
            ours: taken.ours.map(value),
            theirs: taken.theirs.map(value),
          });
          const cpu = pair((answer) => answer.cpu);
          return [
            { ...common, group: "train", unit: "s", ...pair(({ seconds }) => seconds), cpu },
            { ...common, group: "memory", unit: "GB", ...pair(({ peak }) => peak / 1e9) },
          ];
        });
      } finally {
        await Promise.all([ours.stop(), theirs.stop()]);
      }
    }
  }
}

export interface StepPlan {
  model: string;
  groups: number;
  samples: number;
  tokens: number;
  steps: number;
  repetitions: number;
  /** Of TRL's one process; our engine and our rank have one each. */
  threads: number;
  /** False: only ours is run, and nothing measured. */
  peer: boolean;
}

/** Times of the optimizer steps' ends, seconds from the command's start. */
type StepTimes = number[];

export async function* wholeStep(setting: Setting, plan: StepPlan): AsyncGenerator<Row> {
  const { groups, samples, tokens } = plan;
  const names = { rl: `${groups * samples} rows of ${tokens} tokens, a step`, first: "command to first step done" };
  const common = { group: "rl", peer: "TRL", unit: "s" } as const;
  setting.log(`whole step: ours ${plan.peer ? "and TRL" : "alone"}`);
  yield* await attempt({ ...common, name: names.rl }, setting.log, async () => {
    if (!plan.peer) {
      await ourSteps(setting, plan);
      return [{ ...common, name: names.rl, ours: [], theirs: [], notRun: "not run: a smoke run leaves TRL out" }];
    }
    const taken = await alternate(
      plan.repetitions,
      () => ourSteps(setting, plan),
      () => trlSteps(setting, plan),
    );
    const each = (times: StepTimes) => (times.at(-1)! - times[0]!) / (times.length - 1);
    const pair = (value: (times: StepTimes) => number) => ({
      ours: taken.ours.map(value),
      theirs: taken.theirs.map(value),
    });
    return [
      { ...common, name: names.rl, ...pair(each) },
      { ...common, name: names.first, ...pair((times) => times[0]!) },
    ];
  });
}

const prompts = Array.from({ length: 64 }, (_, index) => `words with many of the letter, list ${index}`);

async function ourSteps({ root }: Setting, plan: StepPlan): Promise<StepTimes> {
  const folder = mkdtempSync(join(tmpdir(), "molt-bench-"));
  const recipe = {
    run: { name: "bench", dir: join(folder, "runs"), steps: plan.steps },
    actor: { model_name_or_path: plan.model, adam: { lr: 1e-5 }, gradient_checkpoint: "none" },
    data: { prompt_dataset: "prompts.jsonl", input_key: "prompt", max_len: 256 },
    rollout: { batch_size: plan.groups, n_samples_per_prompt: plan.samples, max_new_tokens: plan.tokens, max_turns: 1 },
    train: { agent_path: join(root, "runner/bench/agent.ts") },
    algo: { advantage: { estimator: "grpo" } },
    ckpt: { save_steps: -1 },
  };
  try {
    writeFileSync(join(folder, "recipe.yaml"), JSON.stringify(recipe));
    const lines = prompts.map((prompt) => JSON.stringify({ prompt }));
    writeFileSync(join(folder, "prompts.jsonl"), `${lines.join("\n")}\n`);
    const begin = Date.now() / 1000;
    await runNode([join(root, "runner/dist/cli.js"), "run", join(folder, "recipe.yaml")]);
    const run = join(folder, "runs", readdirSync(join(folder, "runs"))[0]!);
    const events = [...readEvents(join(run, "events.ndjson"))].filter((event) => event.type === "step");
    if (events.length !== plan.steps) throw new RunnerError(`our run made ${events.length} of ${plan.steps} steps`);
    return events.map(({ time }) => time - begin);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function trlSteps({ root }: Setting, plan: StepPlan): Promise<StepTimes> {
  const begin = Date.now() / 1000;
  const printed = await python([join(root, "runner/bench/grpo.py"), JSON.stringify({ ...plan, prompts })], 600);
  const { steps } = JSON.parse(printed.trim().split("\n").at(-1)!) as { steps: number[] };
  return steps.map((time) => time - begin);
}

async function runNode(args: string[]): Promise<void> {
  const env = { ...process.env, ...sharedEnvironment };
  try {
    await call(process.execPath, args, { env, timeout: deadlineMs(300), maxBuffer: 2 ** 26 });
  } catch (error) {
    throw new RunnerError(`node ${args.slice(0, 2).join(" ")}: ${(error as Error).message.slice(-500)}`);
  }
}

/** Wall time of whole commands; the floor is Node's own start. */
export async function* startUp(
  { root, log }: Setting,
  plan: { recipe: string; repetitions: number },
): AsyncGenerator<Row> {
  const timed = (args: string[]) => async () => {
    const begin = performance.now();
    await runNode(args);
    return performance.now() - begin;
  };
  const cli = join(root, "runner/bin/molt-runner.js");
  const commands = { "--help": [cli, "--help"], check: [cli, "check", plan.recipe] };
  for (const [name, args] of Object.entries(commands)) {
    log(`start-up: ${name}`);
    const common = { group: "start", name: `molt-runner ${name}`, peer: "node -e 0", unit: "ms" } as const;
    yield* await attempt(common, log, async () => {
      return [{ ...common, ...(await alternate(plan.repetitions, timed(args), timed(["-e", "0"]))) }];
    });
  }
}

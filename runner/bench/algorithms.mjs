// Final accuracy on the quickstart by estimator, loss and what else changes the gradient, over three seeds:
//   npm run bench:algorithms -- [--estimators grpo,cispo,refill] [--seeds 0,1,2] [--steps 200] [--minutes 10]
// A minute a run on two quiet cores, and none takes more than --minutes. Every evaluation goes to algorithms-table.json
// in --output (docs/), of which algorithms-table.md and a curve a row are made: rows run alone replace their own.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const root = fileURLToPath(new URL("../..", import.meta.url));
const estimator = (name, flags = {}) => [name, { "algo.advantage.estimator": name, ...flags }];
const loss = (name, flags = {}) => [`loss ${name}`, { "actor.loss_mode": name, ...flags }];

const scratch = mkdtempSync(join(tmpdir(), "molt-algorithms-"));
const model = join(scratch, "model");
const teacher = join(scratch, "teacher");

/** Flags by row; the quickstart's own (reinforce_baseline, ppo, drop) where a row says nothing. */
const rows = new Map([
  estimator("reinforce_baseline"),
  estimator("reinforce"),
  estimator("grpo"),
  estimator("dr_grpo"),
  estimator("rloo"),
  estimator("flash_reinforce"),
  estimator("opo"),
  estimator("maxrl"),
  estimator("pass_k", { "algo.advantage.pass_k": "2" }),
  estimator("turn_credit"),
  estimator("gae", {
    "actor.freezing_steps": "5",
    "critic.adam.lr": "2e-3",
    "critic.lr_warmup_ratio": "0.05",
    "algo.dynamic_filtering": "off",
  }),
  estimator("on_policy_distill", {
    "ref.model_name_or_path": teacher,
    "algo.kl.init_coef": "1",
    "algo.kl.use_loss": "false",
    "algo.kl.estimator": "k1",
    "algo.advantage.clip": "2",
    "actor.entropy_coef": "0.1",
    "algo.dynamic_filtering": "off",
  }),
  loss("ppo", { "train.updates_per_batch": "2" }),
  loss("gspo", { "train.updates_per_batch": "2" }),
  loss("cispo", { "train.updates_per_batch": "2" }),
  loss("importance", { "train.updates_per_batch": "2" }),
  ["mean over rollouts", { "actor.loss_agg_mode": "seq-mean-token-mean" }],
  ["mean over prompts", { "actor.loss_agg_mode": "prompt-mean-token-mean" }],
  ["KL 0.01 in the loss", { "algo.kl.init_coef": "0.01" }],
  ["KL 0.01 in the reward", { "algo.kl.init_coef": "0.01", "algo.kl.use_loss": "false", "algo.kl.estimator": "k1" }],
  ["correction off on-policy", { "algo.advantage.is_correction_level": "off", "train.max_staleness": "0" }],
  ["refill", { "algo.dynamic_filtering": "refill" }],
]);

const { values } = parseArgs({
  options: {
    steps: { type: "string", default: "200" },
    seeds: { type: "string", default: "0,1,2" },
    estimators: { type: "string", default: "" },
    minutes: { type: "string", default: "10" },
    output: { type: "string", default: join(root, "docs") },
  },
});
const wanted = values.estimators.split(",").filter((name) => name !== "");
const isWanted = (row) => wanted.length === 0 || wanted.includes(row) || wanted.includes(row.replace("loss ", ""));
const unknown = wanted.filter((name) => !rows.has(name) && !rows.has(`loss ${name}`));
const seeds = values.seeds.split(",");
const numbers = [...seeds, values.steps, values.minutes];
if (unknown.length > 0 || !numbers.every((text) => /^\d+$/.test(text))) {
  console.error(`--estimators are of ${[...rows.keys()].join(", ")}, not '${unknown}'; the others are whole numbers`);
  rmSync(scratch, { recursive: true });
  process.exit(2);
}

/** The last line of what the verb said, where it failed. */
function moltRunner(verb, recipe, flags) {
  const words = Object.entries({ ...flags, "run.dir": join(scratch, "runs") }).map(
    ([key, value]) => `--${key}=${value}`,
  );
  const args = [join(root, "runner/bin/molt-runner.js"), verb, join(root, recipe), ...words];
  const timeout = values.minutes * 60_000;
  const { status, stderr, error } = spawnSync(process.execPath, args, { encoding: "utf8", timeout });
  if (error) return `ended after ${values.minutes} minutes`;
  return status === 0 ? null : (stderr.trim().split("\n").at(-1) ?? `exit ${status}`);
}

/** Held-out accuracy by step, greedy and sampled. */
function run(flags, seed) {
  const name = "table";
  const all = { ...flags, "run.name": name, "run.seed": seed, "run.steps": values.steps, "eval.at_start": "true" };
  const failure = moltRunner("run", "recipes/quickstart.yaml", { ...all, "actor.model_name_or_path": model });
  const [directory] = readdirSync(join(scratch, "runs")).filter((folder) => folder.startsWith(`${name}-`));
  if (directory === undefined) return { failure, evals: [] };
  const events = readFileSync(join(scratch, "runs", directory, "events.ndjson"), "utf8")
    .trim()
    .split("\n");
  const evals = events.map((line) => JSON.parse(line)).filter(({ type }) => type === "eval");
  rmSync(join(scratch, "runs", directory), { recursive: true });
  return { failure, evals: evals.map(({ step, metrics }) => ({ step, ...metrics })) };
}

const color = (index) => ["#2563eb", "#ea580c", "#16a34a", "#9333ea"][index % 4];

/** One line a seed, from accuracy 0 at the bottom to 1 at the top. */
function sparkline({ steps, runs }) {
  const points = ({ evals }) =>
    evals.map(({ step, accuracy }) => `${((step / steps) * 158 + 1).toFixed(1)},${(31 - accuracy * 30).toFixed(1)}`);
  const lines = runs.map(
    (one, index) =>
      `<polyline fill="none" stroke="${color(index)}" stroke-width="1.5" points="${points(one).join(" ")}"/>`,
  );
  const frame = '<rect x="0.5" y="0.5" width="159" height="31" fill="#fff" stroke="#ddd"/>';
  const size = 'width="160" height="32" viewBox="0 0 160 32"';
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${frame}${lines.join("")}</svg>\n`;
}

const percent = (value) => (value === undefined ? "–" : `${(value * 100).toFixed(0)}%`);

function tableRow(name, { steps, runs }) {
  const file = `curves/${name.replaceAll(/[^a-z0-9]+/gi, "-").toLowerCase()}.svg`;
  writeFileSync(join(values.output, file), sparkline({ steps, runs }));
  const last = (metric) => runs.map(({ evals }) => percent(evals.at(-1)?.[metric])).join(" / ");
  const failures = runs.flatMap(({ failure }) => failure ?? []);
  const cells = [name, steps, last("accuracy"), last("sampled"), `![curve](${file})`, failures.join("; ")];
  return `| ${cells.join(" | ")} |`;
}

const head = `# Estimators and losses on the quickstart

Held-out accuracy after the last step of recipes/quickstart.yaml, greedy and sampled, one figure a seed. Curves: greedy
accuracy from 0 to 1 over the steps, a line a seed. Made by \`node runner/bench/algorithms.mjs\`; what each row is:
[estimators.md](estimators.md). The losses are compared at two updates a batch, where their clips differ.

| what | steps | greedy | sampled | curve | failed |
|---|---|---|---|---|---|
`;

/** What was measured so far, this run's rows included: row → { steps, seeds, runs: [{ failure, evals }] }. */
function writeTable(measured) {
  mkdirSync(join(values.output, "curves"), { recursive: true });
  writeFileSync(results, `${JSON.stringify(measured)}\n`);
  const lines = [...rows.keys()].filter((name) => name in measured).map((name) => tableRow(name, measured[name]));
  writeFileSync(join(values.output, "algorithms-table.md"), `${head}${lines.join("\n")}\n`);
}

const results = join(values.output, "algorithms-table.json");
const measured = existsSync(results) ? JSON.parse(readFileSync(results, "utf8")) : {};
try {
  const made = [
    ["recipes/quickstart/warmup.yaml", model],
    ...(isWanted("on_policy_distill") ? [["recipes/distill/teacher.yaml", teacher]] : []),
  ];
  for (const [recipe, folder] of made) {
    const failure = moltRunner("sft", recipe, { "ckpt.output_dir": folder });
    if (failure !== null) throw new Error(`${recipe} failed: ${failure}`);
  }
  for (const [name, flags] of rows) {
    if (!isWanted(name)) continue;
    const one = { steps: Number(values.steps), seeds, runs: seeds.map((seed) => run(flags, seed)) };
    measured[name] = one;
    writeTable(measured);
    console.log(tableRow(name, one));
  }
} finally {
  rmSync(scratch, { recursive: true, force: true });
}

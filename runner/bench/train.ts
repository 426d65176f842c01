/**
 * `npm run bench:train [-- --smoke]`: a training step beside `transformers`, of a dense model and a mixture, with and
 * without checkpointing; then on two ranks. Writes its section of docs/speed.md; a smoke run shows that all still runs.
 */
import { existsSync, writeFileSync } from "node:fs";
import { availableParallelism, loadavg } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { readModelFolder } from "../src/data/model-folder.ts";
import { sftLoss } from "../src/trainer/fixtures/loss.ts";
import { RankGroup } from "../src/trainer/handle.ts";
import type { StoredRow } from "../src/trainer/packing.ts";
import type { InitParams } from "../src/trainer/protocol.ts";
import { trainUpdates } from "../src/trainer/update.ts";
import { type Checkpointing, training } from "./cases.ts";
import { alternate, median, type Row, ratios } from "./compare.ts";
import { python } from "./models.ts";
import { hasBfloat16 } from "./processor.ts";
import { writeSection } from "./sections.ts";
import { type StepTimeline, shares, timelineSvg } from "./timeline.ts";

const root = fileURLToPath(new URL("../../../", import.meta.url));
const isSmoke = process.argv.includes("--smoke");
const [count, length, repetitions] = isSmoke ? [2, 16, 1] : [4, 256, 3];
const log = (line: string) => console.error(line);
const kinds = ["dense", "mixture"] as const;

async function modelOf(kind: string): Promise<string> {
  const folder = join(root, "runs", `bench-${kind}`);
  const script = join(root, "runner/bench/random_model.py");
  if (!existsSync(join(folder, "model.safetensors"))) await python([script, kind, folder], 300);
  return folder;
}

async function besideTransformers(kind: string): Promise<Row[]> {
  const dtypes = isSmoke || !hasBfloat16() ? ["float32"] : ["float32", "bfloat16"];
  const cases = dtypes.map((dtype) => ({ dtype, rows: count, length, threads: 1 }));
  const checkpoints: Checkpointing[] = isSmoke ? ["full"] : ["full", "selective", "none"];
  const rows: Row[] = [];
  const plan = { model: await modelOf(kind), cases, repetitions, checkpoints };
  for await (const row of training({ root, log }, plan)) rows.push({ ...row, name: `${kind}, ${row.name}` });
  return rows;
}

function initOf(folder: string, expertSize: number): Omit<InitParams, "worldSize" | "store"> {
  const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
  return {
    mesh: { contextSize: 1, expertSize },
    policy: { config: decoder.config, units: decoder.units, weights: tensors, seed: 0, dtype: "float32" },
    ref: null,
    optimizer: { betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01, maxNorm: 1 },
    critic: null,
    loss: sftLoss,
    mixture: { balanceCoef: 0, replaysRoutes: false },
  };
}

function rowsOf(many: number): StoredRow[] {
  return Array.from({ length: many }, (_, index) => ({
    id: `row ${index}`,
    tokens: Int32Array.from({ length }, (_, t) => 3 + ((index * 7919 + t * 104729) % 499)),
    mask: Uint8Array.from({ length }, (_, t) => Number(t > 0)),
    logprobs: new Float32Array(length).fill(Number.NaN),
    temperatures: new Float32Array(length).fill(1),
  }));
}

const schedule = { maxTokensPerDevice: count * length, schedule: () => 1e-5 };

async function timelineOf(ranks: RankGroup): Promise<StepTimeline> {
  await ranks.all("recordCollectives", { on: true });
  const start = Date.now();
  await trainUpdates(ranks, [rowsOf(2 * count)], schedule, 0);
  const end = Date.now();
  const found = await ranks.all("recordCollectives", { on: false });
  return { start, end, ranks: found.map(({ collectives }) => collectives) };
}

/** Seconds of a step on one rank and on two, of one thread each: of the same rows, and of as many for each rank. */
async function onTwoRanks(kind: string): Promise<{ rows: Row[]; timeline: StepTimeline }> {
  const folder = await modelOf(kind);
  const deadlines = { start: 300, request: 600 };
  const [one, two] = await Promise.all(
    [1, 2].map((ranks) =>
      RankGroup.start({ count: ranks, init: initOf(folder, kind === "dense" ? 1 : ranks), deadlines }),
    ),
  );
  const step = (ranks: RankGroup, many: number) => async () => {
    const startedAt = performance.now();
    await trainUpdates(ranks, [rowsOf(many)], schedule, 0);
    return (performance.now() - startedAt) / 1000;
  };
  try {
    const common = { group: "scale", peer: "one rank", unit: "s" } as const;
    const same = await alternate(repetitions, step(two!, 2 * count), step(one!, 2 * count));
    const each = await alternate(repetitions, step(two!, 2 * count), step(one!, count));
    const rows = [
      { ...common, name: `${kind}, the same rows`, ...same },
      { ...common, name: `${kind}, as many rows for each rank`, ...each },
    ];
    return { rows, timeline: await timelineOf(two!) };
  } finally {
    await Promise.all([one!.stop(), two!.stop()]);
  }
}

function line(row: Row): string {
  if (row.notRun) return `| ${row.name} | | | ${row.notRun} | |`;
  const all = ratios(row);
  const spread = `**${median(all).toFixed(2)}** (${Math.min(...all).toFixed(2)} to ${Math.max(...all).toFixed(2)})`;
  const cpu = row.cpu ? median(ratios(row.cpu)).toFixed(2) : "";
  return `| ${row.name} | ${median(row.ours).toFixed(2)} | ${median(row.theirs).toFixed(2)} | ${spread} | ${cpu} |`;
}

function table(rows: Row[], peer: string): string {
  const heads = ["case", "ours", peer, "ratio", "ratio of processor time"];
  return `| ${heads.join(" | ")} |\n|---|--:|--:|--:|--:|\n${rows.map(line).join("\n")}`;
}

function timelineTable(timelines: { title: string; timeline: StepTimeline }[]): string {
  const lines = timelines.flatMap(({ title, timeline }) =>
    timeline.ranks.map((collectives, rank) => {
      const { communicating, hidden, waiting } = shares(collectives, timeline);
      const percents = [communicating, hidden, waiting].map((share) => `${(100 * share).toFixed(0)}%`);
      return `| ${title}, rank ${rank} | ${percents.join(" | ")} |`;
    }),
  );
  const heads = [
    "case",
    "of the step: collectives under way",
    "of that: hidden by computing",
    "of the step: only waiting",
  ];
  return `| ${heads.join(" | ")} |\n|---|--:|--:|--:|\n${lines.join("\n")}`;
}

function section(rows: Row[], timelines: { title: string; timeline: StepTimeline }[]): string {
  const of = (group: string) => rows.filter((row) => row.group === group);
  const [load, date] = [loadavg()[0]!.toFixed(1), new Date().toISOString().slice(0, 10)];
  return `## Training step, dense and mixture

Written by \`npm run bench:train\` (${availableParallelism()} cores, load ${load} at its end, ${date}): a random Qwen3
and a random Qwen3-MoE, ${count} rows of ${length} tokens, one thread a process; both sides in turn. Ratios are the
peer's figure by ours: above 1 we are faster, or smaller. Seconds of forward, backward, clipping and AdamW:

${table(of("train"), "transformers")}
${hasBfloat16() ? "" : "\nNot run: bfloat16, for which this processor has no instructions.\n"}
GB of the process's peak resident set:

${table(of("memory"), "transformers")}

Seconds of a step on two ranks beside one, of one thread each, the mixture's experts halved. The ratio of the same
rows is the speed-up; of as many rows for each rank, what it lacks to 1 is the share of a step that ranks wait for each
other:

${table(of("scale"), "one rank")}

What goes on in one of those steps, weights gathered ahead and gradients summed behind (a rank that comes late counts
as a collective under way):

${timelineTable(timelines)}

![timeline](overlap.svg)
`;
}

const rows: Row[] = [];
const timelines: { title: string; timeline: StepTimeline }[] = [];
for (const kind of kinds) {
  rows.push(...(await besideTransformers(kind)));
  log(`two ranks: ${kind}`);
  const two = await onTwoRanks(kind);
  rows.push(...two.rows);
  timelines.push({ title: kind, timeline: two.timeline });
}
const text = section(rows, timelines);
console.log(text);
if (!isSmoke) {
  writeSection(join(root, "docs/speed.md"), "train", text);
  writeFileSync(join(root, "docs/overlap.svg"), timelineSvg(timelines));
}
process.exit(rows.some(({ notRun }) => notRun) ? 1 : 0);

/** `npm run bench`: measures us beside what would be used instead, and writes docs/speed.md and docs/speed.svg. */
import { mkdirSync, readFileSync } from "node:fs";
import { availableParallelism, cpus, loadavg, totalmem } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { ExitCode, messageOf, RunnerError, usageError } from "../src/errors.ts";
import { replaceFile } from "../src/files.ts";
import { decoding, type Setting, startUp, training, wholeStep } from "./cases.ts";
import type { Row } from "./compare.ts";
import { installPeers, peersInstalled, python, smolLm2, tinyModel } from "./models.ts";
import { processorFlags } from "./processor.ts";
import { isBusy, type Machine, markdown, svg } from "./report.ts";
import { keptSections } from "./sections.ts";

const usage = `npm run bench [-- OPTIONS]
  --smoke           tiny sizes, a few seconds, installs nothing: only shows that everything still runs
  --only NAMES      some of decode, train, rl, start (commas between)
  --model FOLDER    another model for decode and train than SmolLM2-135M
  --output FOLDER   where speed.md and speed.svg go (default: docs/; of a smoke run, runs/bench-smoke/)`;

// Bundled into runner/bench/dist/.
const root = fileURLToPath(new URL("../../../", import.meta.url));
const caseNames = ["decode", "train", "rl", "start"] as const;
type CaseName = (typeof caseNames)[number];

interface Options {
  smoke: boolean;
  only: CaseName[];
  model: string | undefined;
  output: string;
}

function readOptions(args: string[]): Options | null {
  const options = {
    smoke: { type: "boolean", default: false },
    only: { type: "string" },
    model: { type: "string" },
    output: { type: "string" },
    help: { type: "boolean", default: false },
  } as const;
  try {
    const { values } = parseArgs({ args, options });
    if (values.help) return null;
    const only = (values.only?.split(",") ?? [...caseNames]) as CaseName[];
    const unknown = only.find((name) => !caseNames.includes(name));
    if (unknown !== undefined) throw new Error(`--only: there is no '${unknown}', only ${caseNames.join(", ")}`);
    const output = values.output ?? join(root, values.smoke ? "runs/bench-smoke" : "docs");
    return { smoke: values.smoke, only, model: values.model, output };
  } catch (error) {
    throw usageError(messageOf(error), { fix: usage });
  }
}

/** Under twenty minutes on an idle machine. */
async function* measure({ smoke, only, model: named }: Options, setting: Setting): AsyncGenerator<Row> {
  if (!smoke) await installPeers(setting.log);
  const tiny = await tinyModel(root);
  const model = named ?? (smoke ? tiny : await smolLm2(root));
  const dtypes = ["float32", "bfloat16"];
  const decodePlan = smoke
    ? { model, dtypes: ["float32"], threads: [1], batches: [2], prompt: 8, tokens: 4, repetitions: 1 }
    : { model, dtypes, threads: [1, 2], batches: [1, 16, 64], prompt: 64, tokens: 16, repetitions: 3 };
  const trainPlan = smoke
    ? { model, cases: [{ dtype: "bfloat16", rows: 2, length: 16, threads: 1 }], repetitions: 1 }
    : { model, cases: trainCases, repetitions: 2 };
  const stepPlan = smoke
    ? { model: tiny, groups: 2, samples: 2, tokens: 4, steps: 2, repetitions: 1, threads: 1, peer: false }
    : {
        model: tiny,
        groups: 8,
        samples: 8,
        tokens: 64,
        steps: 8,
        repetitions: 2,
        threads: availableParallelism(),
        peer: true,
      };
  const startPlan = { recipe: join(root, "recipes/quickstart.yaml"), repetitions: smoke ? 1 : 15 };
  const cases: Record<CaseName, () => AsyncGenerator<Row>> = {
    start: () => startUp(setting, startPlan),
    decode: () => decoding(setting, decodePlan),
    train: () => training(setting, trainPlan),
    rl: () => wholeStep(setting, stepPlan),
  };
  for (const name of caseNames) if (only.includes(name)) yield* cases[name]();
}

const trainCases = [
  { dtype: "float32", rows: 2, length: 512, threads: 1 },
  { dtype: "bfloat16", rows: 8, length: 512, threads: 2 },
];

let known: Record<string, string> | undefined;

async function versions(): Promise<Record<string, string>> {
  if (known) return known;
  const own = JSON.parse(readFileSync(join(root, "runner/package.json"), "utf8")) as { version: string };
  const names = ["torch", "transformers", ...(peersInstalled() ? ["trl"] : [])];
  const code = `from importlib.metadata import version\nfor name in ${JSON.stringify(names)}: print(version(name))`;
  const found = (await python(["-c", code], 60)).trim().split("\n");
  const peers = Object.fromEntries(names.map((name, index) => [name, found[index]!]));
  known = { "molt-runner": own.version, node: process.versions.node, ...peers };
  return known;
}

/** Writes the page and the picture anew after each case, so that what was measured stays whatever comes after. */
async function run(options: Options): Promise<void> {
  const log = (line: string) => console.error(line);
  const start = loadavg()[0]!;
  const { smoke, only, output } = options;
  const words = ["npm run bench", ...(smoke ? ["--smoke"] : []), ...(only.length < 4 ? [`--only ${only}`] : [])];
  const command = words.length > 1 ? `${words[0]} -- ${words.slice(1).join(" ")}` : words[0]!;
  const rows: Row[] = [];
  for await (const row of measure(options, { root, log })) {
    rows.push(row);
    const machine: Machine = {
      processor: cpus()[0]?.model.trim() ?? process.arch,
      cores: availableParallelism(),
      flags: processorFlags(),
      memoryGb: totalmem() / 1e9,
      load: { start, end: loadavg()[0]! },
      versions: await versions(),
      date: new Date().toISOString().slice(0, 10),
    };
    mkdirSync(output, { recursive: true });
    const page = join(output, "speed.md");
    replaceFile(page, markdown(rows, machine, command) + keptSections(page));
    replaceFile(join(output, "speed.svg"), svg(rows));
  }
  const busy = `warning: the machine was busy (load ${start.toFixed(1)}): measure again on an idle one`;
  if (isBusy({ load: { start, end: 0 }, cores: availableParallelism() })) log(busy);
  log(`written: ${join(output, "speed.md")} and speed.svg`);
  const failed = rows.filter((row) => row.notRun?.startsWith("failed")).map((row) => row.name);
  if (failed.length > 0) throw new RunnerError(`${failed.length} cases failed: ${failed.join("; ")}`);
}

/** Resolves with the exit code. */
export async function bench(args: string[]): Promise<number> {
  try {
    const options = readOptions(args);
    if (options === null) console.log(usage);
    else await run(options);
    return ExitCode.done;
  } catch (error) {
    if (!(error instanceof RunnerError)) throw error;
    console.error(`error ${error.format()}`);
    return error.exitCode;
  }
}

/**
 * `npm run bench:sync [-- MEGABYTES]`: one weight sync of a random model (default 1 GB of float32) from one rank to one
 * and two embedded engines, as a run does it, verified; beside a copy of the same bytes in memory and Gloo's own
 * broadcast of them. Writes its section of docs/speed.md, unless another size is given.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { availableParallelism, loadavg } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import type { UnitDescription } from "molt-native";
import type { Decoder } from "../src/data/decoder.ts";
import { readModelFolder } from "../src/data/model-folder.ts";
import { EngineFleet } from "../src/engines/fleet.ts";
import { embeddedEngine } from "../src/engines/start.ts";
import { BroadcastTransport } from "../src/engines/transfer/broadcast.ts";
import type { Transport } from "../src/engines/transfer/transport.ts";
import { syncWeights } from "../src/engines/weight-sync.ts";
import { messageOf } from "../src/errors.ts";
import { freePort } from "../src/launchers/free-port.ts";
import { sftLoss } from "../src/trainer/fixtures/loss.ts";
import { RankGroup } from "../src/trainer/handle.ts";
import type { InitParams, OptimizerSpec } from "../src/trainer/protocol.ts";
import { median } from "./compare.ts";
import { python } from "./models.ts";
import { writeSection } from "./sections.ts";

type RankInit = Omit<InitParams, "worldSize" | "store">;

const root = fileURLToPath(new URL("../../../", import.meta.url));
process.env.MOLT_CLI ??= join(root, "runner/dist/cli.js");
const megabytes = Number(process.argv[2] ?? 1000);
const repetitions = 5;
const seconds = () => performance.now() / 1000;

/** The folder of a Qwen3 of about that size, without weights: layers of 50 MB. */
function makeModel(): string {
  const folder = join(root, "runs", `bench-sync-${megabytes}`);
  const config = {
    model_type: "qwen3",
    vocab_size: 512,
    hidden_size: 1024,
    intermediate_size: 3072,
    num_hidden_layers: Math.max(1, Math.round(megabytes / 50)),
    num_attention_heads: 8,
    num_key_value_heads: 4,
    head_dim: 128,
    max_position_embeddings: 512,
    tie_word_embeddings: true,
    eos_token_id: 2,
  };
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  return folder;
}

/** In pieces, so that little memory is held. */
function copySeconds(bytes: number): number {
  const [from, to] = [Buffer.alloc(2 ** 26, 1), Buffer.alloc(2 ** 26, 2)];
  const start = seconds();
  for (let copied = 0; copied < bytes; copied += from.length) from.copy(to);
  return seconds() - start;
}

/** Asks for one token after another, as a rollout does; tells when each came. */
function askTokens({ router, client }: EngineFleet) {
  const times: number[] = [];
  let isAsking = true;
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 1, stopTokenIds: [], seed: 1 };
  const asking = (async () => {
    while (isAsking) {
      const lease = await router.acquire("bench", 60);
      const request = { requestId: `r${times.length}`, tokenIds: [1, 7, 9], version: lease.version, sampling };
      await client.generate(lease.url, request, { timeoutSeconds: 60 }).finally(() => lease.release());
      times.push(seconds());
    }
  })();
  const stop = async () => {
    isAsking = false;
    await asking;
    return times;
  };
  return { stop };
}

/** How much longer than usual the longest wait for a token was. */
function standstill(times: number[]): number {
  const gaps = times.slice(1).map((time, index) => time - times[index]!);
  return Math.max(...gaps) - median(gaps);
}

/** Of its training nothing is used. */
function rankInit({ config, units }: Decoder): RankInit {
  const optimizer = { betas: [0.9, 0.95], eps: 1e-8, weightDecay: 0, maxNorm: 1 } as OptimizerSpec;
  const policy = { config, units, weights: null, seed: 5, dtype: "float32" } as const;
  const mesh = { contextSize: 1, expertSize: 1 };
  const mixture = { balanceCoef: 0, replaysRoutes: false };
  return { mesh, mixture, policy, ref: null, optimizer, critic: null, loss: sftLoss };
}

function bytesOf(units: UnitDescription[]): number {
  const shapes = units.flatMap(({ parameters }) => parameters.map(({ shape }) => shape));
  return 4 * shapes.reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
}

interface Taken {
  sync: number;
  standstill: number;
  copy: number;
}

const deadlineSeconds = 240;

async function timeSync(fleet: EngineFleet, transport: Transport, bytes: number, version: number): Promise<Taken> {
  const asked = askTokens(fleet);
  await sleep(1000);
  const options = { inFlight: "resume", drainSeconds: 60, deadlineSeconds, log: console.error } as const;
  const { seconds: sync } = await syncWeights({ fleet, transport, version, ...options });
  await sleep(1000);
  const times = await asked.stop();
  return { sync, standstill: standstill(times), copy: copySeconds(bytes) };
}

/** NaN where there is no Python to ask. */
async function glooSeconds(bytes: number, count: number): Promise<number> {
  const script = join(root, "runner/bench/gloo.py");
  const said = python([script, String(bytes), String(count), String(await freePort())], 300);
  return said.then(Number, (error) => {
    console.error(messageOf(error));
    return Number.NaN;
  });
}

async function measure(folder: string, count: number) {
  const { decoder } = readModelFolder(folder, { weights: "none" });
  const start = embeddedEngine(folder, ["--init", "random", "--threads", "1", "--cache-tokens", "512"], 300);
  const fleet = await EngineFleet.start({ count, start, version: 0, maxRestarts: 0, emit: () => {} });
  const taken: Taken[] = [];
  try {
    const deadlines = { start: 300, request: 300 };
    const ranks = await RankGroup.start({ count: 1, init: rankInit(decoder), deadlines });
    try {
      const { client } = fleet;
      const transport = new BroadcastTransport({ client, ranks, units: decoder.units, deadlineSeconds });
      // The first meets in a group and warms up.
      for (let version = 1; version <= repetitions + 1; version++)
        taken.push(await timeSync(fleet, transport, bytesOf(decoder.units), version));
    } finally {
      await ranks.stop();
    }
  } finally {
    await fleet.stop();
  }
  const bytes = bytesOf(decoder.units);
  return { count, bytes, taken: taken.slice(1), gloo: await glooSeconds(bytes, count) };
}

type Measured = Awaited<ReturnType<typeof measure>>;

const spread = (values: number[]) =>
  `${median(values).toFixed(2)} (${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)})`;

function line({ count, bytes, taken, gloo }: Measured): string {
  const all = (key: keyof Taken) => taken.map((one) => one[key]);
  const [sync, copy] = [median(all("sync")), median(all("copy"))];
  const cells = [
    `${count} engine${count > 1 ? "s" : ""}`,
    spread(all("sync")),
    (bytes / sync / 1e9).toFixed(2),
    spread(all("standstill")),
    copy.toFixed(2),
    (sync / copy).toFixed(1),
    gloo.toFixed(2),
    (sync / gloo).toFixed(2),
  ];
  return `| ${cells.join(" | ")} |`;
}

function section(all: Measured[]): string {
  const heads = [
    "to",
    "sync, s",
    "GB/s an engine",
    "no tokens, s",
    "memcpy, s",
    "times memcpy",
    "Gloo, s",
    "times Gloo",
  ];
  const gigabytes = (all[0]!.bytes / 1e9).toFixed(2);
  const [load, date] = [loadavg()[0]!.toFixed(1), new Date().toISOString().slice(0, 10)];
  return `## Weight sync

Written by \`npm run bench:sync\` (${availableParallelism()} cores, load ${load} at its end, ${date}): ${gigabytes} GB
of float32 from one rank to embedded engines on the same machine, one thread each. \`sync\` is all of it, from holding
requests to the last engine serving the version that its checksum verifies; \`no tokens\` is how much longer than usual
a caller then waits for a token. Medians of ${repetitions}, lowest to highest. Beside it a copy of the same bytes in
memory, and PyTorch's own broadcast of them over Gloo.

| ${heads.join(" | ")} |
|${heads.map((_, index) => (index === 0 ? "---|" : "--:|")).join("")}
${all.map(line).join("\n")}
`;
}

const folder = makeModel();
const all: Measured[] = [];
for (const count of [1, 2]) {
  all.push(await measure(folder, count));
  console.error(line(all.at(-1)!));
}
const text = section(all);
console.log(text);
if (process.argv[2] === undefined) writeSection(join(root, "docs/speed.md"), "sync", text);

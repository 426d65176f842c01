import { spawn } from "node:child_process";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import type { DecoderConfig, ModelOptions, TensorLocation, UnitDescription } from "molt-native";
import { freePort } from "../../runner/src/launchers/free-port.ts";

/** What `rank.mjs` prints. */
export interface Seen {
  shardSize: number;
  initialized: string;
  /** What a file that cannot be written says. */
  unwritten: string | null;
  loaded: string;
  logp: number[];
  balance: number;
  gradients: Record<string, number[]>;
  norm: number;
  stepped: Record<string, number[]>;
  trained: string;
  restored: string;
  broken: string[];
}

export interface Rows {
  tokens: number[];
  cu: number[];
  targets: number[];
  temperatures: number[];
  balance?: number[];
}

/** Rows, and what weighs their log-probabilities and entropies in the loss. */
export interface Microbatch {
  rows: Rows;
  a: number[];
  b: number[];
}

export interface Job {
  config: DecoderConfig;
  units: UnitDescription[];
  /** Absent: seeded weights. */
  tensors?: TensorLocation[];
  /** Path that rank 0 saves to. */
  save: string;
  model?: Partial<ModelOptions>;
  /** Optimizer steps; default 1. */
  steps?: number;
  /** Ranks that have the same rows, and that share out experts; default 1. */
  cp?: number;
  ep?: number;
}

const children: ReturnType<typeof spawn>[] = [];

export function killRanks(): void {
  for (const child of children.splice(0)) child.kill("SIGKILL");
}

/** Runs a process a rank: `cp` for each share, which is the microbatches of one data index. */
export async function runRanks(shares: Microbatch[][], job: Job): Promise<Seen[]> {
  const port = await freePort();
  const script = fileURLToPath(new URL("rank.mjs", import.meta.url));
  const { cp = 1, ep = 1, steps = 1 } = job;
  const worldSize = shares.length * cp;
  const outputs = Array.from({ length: worldSize }, async (_, rank) => {
    const child = spawn(process.execPath, [script], { stdio: ["pipe", "pipe", "inherit"] });
    children.push(child);
    const group = { rank, worldSize, serveStore: rank === 0, prefix: "model", timeoutMs: 120_000 };
    const options = { host: "127.0.0.1", port, ...group };
    const microbatches = shares[Math.floor(rank / cp)];
    child.stdin.end(JSON.stringify({ ...job, options, mesh: { cp, ep }, microbatches, steps }));
    return JSON.parse(await text(child.stdout)) as Seen;
  });
  return Promise.all(outputs);
}

/** Over all parameters, relative to the largest value of each. */
export function largestRelative(actual: Record<string, number[]>, wanted: Record<string, number[]>): number {
  return Math.max(
    ...Object.entries(wanted).map(([name, values]) => {
      const scale = Math.max(...values.map(Math.abs), 1e-30);
      return Math.max(...values.map((value, i) => Math.abs(actual[name]![i]! - value) / scale));
    }),
  );
}

export function largestGap(actual: number[], wanted: number[]): number {
  return Math.max(...wanted.map((value, i) => Math.abs(actual[i]! - value)));
}

/** One side of a comparison: a process of its own that answers one JSON line for each JSON line. */
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { deadlineMs, withDeadline } from "../src/deadline.ts";
import { RunnerError } from "../src/errors.ts";

export interface DecodeRequest {
  op: "decode";
  threads: number;
  /** `[B]` prompts of equal length. */
  prompts: number[][];
  /** Tokens to sample for each prompt. */
  tokens: number;
}

export interface TrainRequest {
  op: "train";
  threads: number;
  /** `[B]` rows of equal length; every token but the first of a row is trained. */
  rows: number[][];
}

export interface DecodeAnswer {
  /** Seconds from the prompts to their first tokens. */
  prompt: number;
  /** Seconds of the remaining tokens. */
  decode: number;
  /** Processor seconds of the remaining tokens, all threads: what a busy machine disturbs least. */
  cpu: number;
}

export interface TrainAnswer {
  seconds: number;
  /** Processor seconds, all threads. */
  cpu: number;
  /** Peak resident set of the process so far, bytes. */
  peak: number;
}

export interface SideOptions {
  name: string;
  command: string;
  args: string[];
  env?: Record<string, string>;
}

/** The same for both sides: no spinning at barriers, and no more threads than the machine has cores. */
export const sharedEnvironment = { OMP_WAIT_POLICY: "passive", HF_HUB_OFFLINE: "1", TOKENIZERS_PARALLELISM: "false" };

export class Side {
  readonly name: string;
  private readonly process: ChildProcess;
  private readonly lines: AsyncIterator<string>;
  private errors = "";

  constructor({ name, command, args, env }: SideOptions) {
    this.name = name;
    const environment = { ...process.env, ...sharedEnvironment, ...env };
    this.process = spawn(command, args, { stdio: ["pipe", "pipe", "pipe"], env: environment });
    this.process.stdin!.on("error", () => {});
    this.process.stderr!.setEncoding("utf8").on("data", (text: string) => {
      this.errors = (this.errors + text).slice(-4000);
    });
    this.process.once("error", (error) => {
      this.errors += error.message;
    });
    this.lines = createInterface({ input: this.process.stdout! })[Symbol.asyncIterator]();
  }

  async ask(request: DecodeRequest): Promise<DecodeAnswer>;
  async ask(request: TrainRequest): Promise<TrainAnswer>;
  async ask(request: object): Promise<object> {
    this.process.stdin!.write(`${JSON.stringify(request)}\n`);
    const { value, done } = await withDeadline(this.lines.next(), 600, `an answer of ${this.name}`);
    if (done) throw new RunnerError(`${this.name} ended; its last words:\n${this.errors}`);
    return JSON.parse(value);
  }

  async stop(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const closed = new Promise((resolve) => this.process.once("close", resolve));
    this.process.stdin!.end();
    const timer = setTimeout(() => this.process.kill("SIGKILL"), deadlineMs(5));
    await closed;
    clearTimeout(timer);
  }
}

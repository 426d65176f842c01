import type { Sampler } from "molt-native";
import { messageOf, RunnerError } from "../../errors.ts";
import { uniform } from "./philox.ts";

/** What the scheduler and the weight updates need of the native sampler. */
export type SamplerLike = Pick<Sampler, "step" | "free" | "freePages" | "receive" | "checksum">;

export interface SchedulerOptions {
  /** Tokens a page of the cache holds. */
  pageSize: number;
  numPages: number;
  /** Sequences in one step. */
  maxNumSeqs: number;
  /** New tokens in one step: prompts beyond it wait for the next one. A longer prompt goes alone. */
  maxBatchedTokens: number;
  /** Prompt and output of one request. */
  maxModelLen: number;
}

export interface SequenceParams {
  prompt: ArrayLike<number>;
  temperature: number;
  topP: number;
  topK: number;
  maxTokens: number;
  /** The one that ends the output is part of it. */
  stopTokenIds: ReadonlySet<number>;
  seed: number;
}

/** Half-open, over the output's tokens. */
export interface VersionSpan {
  version: string;
  start: number;
  end: number;
}

export interface SequenceOutput {
  tokenIds: number[];
  logprobs: number[];
  versions: VersionSpan[];
  finish: "stop" | "length" | "abort";
}

export type PauseMode = "abort" | "wait" | "keep";

interface Sequence {
  requestId: string;
  params: SequenceParams;
  output: SequenceOutput;
  /** Prompt and output so far. */
  length: number;
  /** Tokens in the cache. */
  cached: number;
  /** The sampler's name for it; -1 while it holds no pages. */
  native: number;
  aborted: boolean;
  resolve: (output: SequenceOutput) => void;
  reject: (error: unknown) => void;
}

/**
 * Continuous batching: every step takes one token further whatever runs, and lets in what waits, first come first
 * served, as far as sequences and pages allow. Out of pages, the youngest gives its pages back and starts over from its
 * tokens. Nothing but `plan` and `apply` changes what runs, and neither happens during a step.
 */
export class Scheduler {
  /** Stands beside each token from now on. */
  version = "default";
  /** Rejects, never resolves, when the sampler fails: the engine is of no more use. */
  readonly failed: Promise<never>;
  private readonly sampler: SamplerLike;
  private readonly options: SchedulerOptions;
  private waiting: Sequence[] = [];
  /** Oldest first. */
  private running: Sequence[] = [];
  /** Arrived while paused. */
  private arrived: Sequence[] = [];
  private paused: PauseMode | null = null;
  private looping = false;
  private stepping = false;
  private nextNative = 0;
  private idleWaiters: (() => void)[] = [];
  private failure: RunnerError | null = null;
  private onFailed: (error: RunnerError) => void = () => {};

  constructor(sampler: SamplerLike, options: SchedulerOptions) {
    this.sampler = sampler;
    this.options = options;
    this.failed = new Promise((_, reject) => {
      this.onFailed = reject;
    });
    this.failed.catch(() => {});
  }

  /** The caller has checked that prompt and one token fit `maxModelLen`. */
  submit(requestId: string, params: SequenceParams): { output: Promise<SequenceOutput>; abort: () => void } {
    if (this.failure) return { output: Promise.reject(this.failure), abort: () => {} };
    let sequence!: Sequence;
    const output = new Promise<SequenceOutput>((resolve, reject) => {
      const empty: SequenceOutput = { tokenIds: [], logprobs: [], versions: [], finish: "length" };
      const state = { length: params.prompt.length, cached: 0, native: -1, aborted: false };
      sequence = { requestId, params, output: empty, ...state, resolve, reject };
    });
    (this.paused ? this.arrived : this.waiting).push(sequence);
    this.wake();
    return { output, abort: () => this.abortWhere((candidate) => candidate === sequence) };
  }

  /** Ends requests with what they have; returns how many. All without ids. */
  abort(requestIds?: ReadonlySet<string>): number {
    return this.abortWhere(({ requestId }) => !requestIds || requestIds.has(requestId));
  }

  /**
   * Resolves when nothing is being sampled: at once after the running step (`abort`, `keep`), or when all that came
   * before has ended (`wait`). New requests wait for `resume`. `clearCache` makes kept requests start over from their
   * tokens.
   */
  async pause(mode: PauseMode, clearCache: boolean): Promise<void> {
    if (mode === "abort") this.abortWhere(() => true);
    this.paused = mode;
    if (mode === "wait") this.wake();
    if (this.looping) await new Promise<void>((resolve) => this.idleWaiters.push(resolve));
    if (clearCache && this.paused) for (const sequence of [...this.running].reverse()) this.preempt(sequence);
  }

  resume(): void {
    this.paused = null;
    this.waiting.push(...this.arrived.splice(0));
    this.wakeIdle();
    this.wake();
  }

  get isPaused(): boolean {
    return this.paused !== null;
  }

  /** Paused, and no step is running. */
  get isQuiet(): boolean {
    return this.paused !== null && !this.looping;
  }

  get load(): number {
    return this.running.length + this.waiting.length + this.arrived.length;
  }

  private wake(): void {
    if (this.looping || this.failure) return;
    this.looping = true;
    // A turn of the event loop later, so that requests that arrived together start together.
    setImmediate(() => this.loop());
  }

  private async loop(): Promise<void> {
    try {
      for (let batch = this.plan(); batch.length > 0; batch = this.plan()) {
        this.stepping = true;
        const result = await this.sampler.step(this.encode(batch));
        this.stepping = false;
        this.apply(batch, result);
      }
    } catch (error) {
      this.fail(error);
    }
    this.looping = false;
    this.wakeIdle();
  }

  /** What the next step takes on; empty when there is nothing to do or nothing may be done. */
  private plan(): Sequence[] {
    if (this.paused === "abort" || this.paused === "keep") return [];
    let free = this.sampler.freePages();
    let needed = this.running.reduce((sum, sequence) => sum + this.newPages(sequence), 0);
    while (needed > free) {
      const youngest = this.running.at(-1)!;
      needed -= this.newPages(youngest);
      free += this.pages(youngest.cached);
      this.preempt(youngest);
    }
    let tokens = this.running.length;
    while (this.running.length < this.options.maxNumSeqs && this.waiting.length > 0) {
      const next = this.waiting[0]!;
      needed += this.pages(next.length);
      tokens += next.length;
      if (needed > free || (tokens > this.options.maxBatchedTokens && this.running.length > 0)) break;
      next.native = this.nextNative;
      this.nextNative = (this.nextNative + 1) % 0x7fffffff;
      this.running.push(next);
      this.waiting.shift();
    }
    return [...this.running];
  }

  private encode(batch: Sequence[]) {
    const size = batch.length;
    const cu = new Int32Array(size + 1);
    batch.forEach(({ length, cached }, index) => {
      cu[index + 1] = cu[index]! + length - cached;
    });
    const tokens = new Int32Array(cu[size]!);
    batch.forEach((sequence, index) => {
      const { params, output, length, cached } = sequence;
      const promptLength = params.prompt.length;
      for (let position = cached, at = cu[index]!; position < length; position++, at++) {
        tokens[at] = position < promptLength ? params.prompt[position]! : output.tokenIds[position - promptLength]!;
      }
    });
    return {
      sequences: Int32Array.from(batch, ({ native }) => native),
      cu,
      tokens,
      temperatures: Float32Array.from(batch, ({ params }) => params.temperature),
      topP: Float32Array.from(batch, ({ params }) => params.topP),
      topK: Int32Array.from(batch, ({ params }) => params.topK),
      uniforms: Float64Array.from(batch, ({ params, length }) => uniform(params.seed, length)),
    };
  }

  private apply(batch: Sequence[], { tokens, logprobs }: { tokens: Int32Array; logprobs: Float32Array }): void {
    batch.forEach((sequence, index) => {
      const { output, params } = sequence;
      const token = tokens[index]!;
      if (!Number.isFinite(logprobs[index])) {
        this.end(sequence);
        sequence.reject(
          new RunnerError(`the log-probability of token ${token} is ${logprobs[index]}: broken weights?`),
        );
        return;
      }
      sequence.cached = sequence.length;
      sequence.length += 1;
      output.tokenIds.push(token);
      output.logprobs.push(logprobs[index]!);
      this.countVersion(output);
      if (params.stopTokenIds.has(token)) this.finish(sequence, "stop");
      else if (output.tokenIds.length >= params.maxTokens) this.finish(sequence, "length");
      else if (sequence.length >= this.options.maxModelLen) this.finish(sequence, "length");
      else if (sequence.aborted) this.finish(sequence, "abort");
    });
    this.running = this.running.filter(({ native }) => native >= 0);
  }

  private countVersion({ versions, tokenIds }: SequenceOutput): void {
    const last = versions.at(-1);
    if (last?.version === this.version) last.end = tokenIds.length;
    else versions.push({ version: this.version, start: tokenIds.length - 1, end: tokenIds.length });
  }

  private finish(sequence: Sequence, finish: SequenceOutput["finish"]): void {
    this.end(sequence);
    sequence.output.finish = finish;
    sequence.resolve(sequence.output);
  }

  private end(sequence: Sequence): void {
    if (sequence.native >= 0) this.sampler.free(sequence.native);
    sequence.native = -1;
    sequence.cached = 0;
  }

  private preempt(sequence: Sequence): void {
    this.end(sequence);
    this.running.splice(this.running.indexOf(sequence), 1);
    this.waiting.unshift(sequence);
  }

  private abortWhere(matches: (sequence: Sequence) => boolean): number {
    const chosen = new Set([...this.running, ...this.waiting, ...this.arrived].filter(matches));
    for (const sequence of chosen) {
      // What a step is working on ends with the step's token.
      if (this.stepping && sequence.native >= 0) sequence.aborted = true;
      else this.finish(sequence, "abort");
    }
    const stays = (sequence: Sequence) => !chosen.has(sequence) || sequence.aborted;
    this.running = this.running.filter(stays);
    this.waiting = this.waiting.filter(stays);
    this.arrived = this.arrived.filter(stays);
    return chosen.size;
  }

  private fail(error: unknown): void {
    this.failure = new RunnerError(`the sampler failed: ${messageOf(error)}`, { cause: error });
    for (const { reject } of [...this.running, ...this.waiting, ...this.arrived]) reject(this.failure);
    this.running = [];
    this.waiting = [];
    this.arrived = [];
    this.onFailed(this.failure);
  }

  private wakeIdle(): void {
    for (const resolve of this.idleWaiters.splice(0)) resolve();
  }

  private pages(tokens: number): number {
    return Math.ceil(tokens / this.options.pageSize);
  }

  private newPages({ length, cached }: Sequence): number {
    return this.pages(length) - this.pages(cached);
  }
}

import type { Sampler, SamplerResult } from "molt-native";
import { messageOf, RunnerError } from "../../errors.ts";
import { uniform } from "./philox.ts";
import { PrefixIndex, prefixKey } from "./prefixes.ts";

/** What the scheduler and the weight updates need of the native sampler. */
export type SamplerLike = Pick<Sampler, "step" | "fork" | "free" | "freePages" | "receive" | "checksum">;

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
  /** Only requests of one salt share cached prompts. */
  cacheSalt?: string | null;
  /** The prompt's tokens are scored. */
  promptLogprobs?: boolean;
  /** Whether the token just added ends the output (stop strings); the next step waits for the answer. */
  stops?: (output: SequenceOutput) => Promise<boolean>;
  /** Called after each token, when it is known whether it is the last. */
  onToken?: (output: SequenceOutput) => void;
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
  /** Of the prompt's tokens at temperature 1, NaN for the first; null unless asked for. */
  promptLogprobs: Float32Array | null;
  /** Null until it has ended. */
  finish: "stop" | "length" | "abort" | null;
}

export type PauseMode = "abort" | "wait" | "keep";

/** What becomes of requests, for metrics. */
export interface SchedulerObserver {
  firstToken(seconds: number): void;
  finished(sequence: { params: SequenceParams; output: SequenceOutput }, seconds: number): void;
}

interface Sequence {
  requestId: string;
  /** `performance.now()`. */
  submittedAt: number;
  /** Of its prompt, null where it is too short to share. */
  prefix: string | null;
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
  /** Sequences that gave their pages back and started over, since the start. */
  preemptions = 0;
  /** Rejects, never resolves, when the sampler fails: the engine is of no more use. */
  readonly failed: Promise<never>;
  readonly prefixes = new PrefixIndex<Sequence>();
  observer: SchedulerObserver = { firstToken() {}, finished() {} };
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
      sequence = this.open(requestId, params, resolve, reject);
    });
    (this.paused ? this.arrived : this.waiting).push(sequence);
    this.wake();
    return { output, abort: () => this.abortWhere((candidate) => candidate === sequence) };
  }

  private open(requestId: string, params: SequenceParams, resolve: Sequence["resolve"], reject: Sequence["reject"]) {
    const { length } = params.prompt;
    const prefix = length > this.options.pageSize && !params.promptLogprobs ? prefixKey(params) : null;
    const output: SequenceOutput = { tokenIds: [], logprobs: [], versions: [], promptLogprobs: null, finish: null };
    const state = { length, cached: 0, native: -1, aborted: false, submittedAt: performance.now() };
    return { requestId, params, prefix, output, ...state, resolve, reject };
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
    this.prefixes.clear();
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
    return this.running.length + this.numWaiting;
  }

  get numRunning(): number {
    return this.running.length;
  }

  get numWaiting(): number {
    return this.waiting.length + this.arrived.length;
  }

  /** Of the cache's pages, those taken: 0 to 1. */
  get cacheUsage(): number {
    return 1 - this.sampler.freePages() / this.options.numPages;
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
        const undecided = this.apply(batch, result);
        if (undecided.length > 0) await this.decide(undecided);
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
    while (this.pagesToGrow() > this.sampler.freePages()) this.preempt(this.running.at(-1)!);
    this.admit(this.sampler.freePages() - this.pagesToGrow());
    return [...this.running];
  }

  private pagesToGrow(): number {
    return this.running.reduce((sum, sequence) => sum + this.newPages(sequence), 0);
  }

  /** A prompt that another is about to compute waits for it, one step, and then takes its pages. */
  private admit(freePages: number): void {
    const opened = new Set<string>();
    const later: Sequence[] = [];
    let free = freePages;
    let tokens = this.running.length;
    let index = 0;
    for (; index < this.waiting.length && this.running.length < this.options.maxNumSeqs; index++) {
      const next = this.waiting[index]!;
      if (next.prefix !== null && opened.has(next.prefix)) {
        later.push(next);
        continue;
      }
      const holder = this.prefixes.find(next);
      const shared = holder ? Math.min(next.params.prompt.length, next.length - 1) : 0;
      free -= this.pages(next.length) - Math.floor(shared / this.options.pageSize);
      tokens += next.length - shared;
      if (free < 0 || (tokens > this.options.maxBatchedTokens && this.running.length > 0)) break;
      this.enter(next, holder, shared);
      // One that ends with its first token leaves nothing to share.
      if (!holder && next.prefix !== null && next.params.maxTokens > 1) opened.add(next.prefix);
    }
    if (index > 0) this.waiting = [...later, ...this.waiting.slice(index)];
  }

  private enter(sequence: Sequence, holder: Sequence | undefined, shared: number): void {
    sequence.native = this.nextNative;
    this.nextNative = (this.nextNative + 1) % 0x7fffffff;
    if (holder) {
      this.sampler.fork(holder.native, sequence.native, shared);
      sequence.cached = shared;
    }
    this.prefixes.queries += sequence.length;
    this.prefixes.hits += shared;
    this.running.push(sequence);
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
      promptLogprobs: batch.some(wantsPrompt) ? Uint8Array.from(batch, (one) => (wantsPrompt(one) ? 1 : 0)) : undefined,
    };
  }

  /** Returns those whose text says whether they go on. */
  private apply(batch: Sequence[], result: SamplerResult): Sequence[] {
    const undecided: Sequence[] = [];
    const now = performance.now();
    batch.forEach((sequence, index) => {
      const { output, params } = sequence;
      const token = result.tokens[index]!;
      const logprob = result.logprobs[index]!;
      if (!Number.isFinite(logprob)) {
        const what = `the log-probability of token ${token} is ${logprob}: broken weights?`;
        this.endWith(sequence, new RunnerError(what));
        return;
      }
      if (wantsPrompt(sequence)) output.promptLogprobs = result.promptLogprobs[index]!;
      if (output.tokenIds.length === 0) this.observer.firstToken((now - sequence.submittedAt) / 1000);
      if (sequence.cached < params.prompt.length) this.prefixes.add(sequence);
      sequence.cached = sequence.length;
      sequence.length += 1;
      output.tokenIds.push(token);
      output.logprobs.push(logprob);
      this.countVersion(output);
      if (params.stopTokenIds.has(token)) this.settle(sequence, true);
      else if (params.stops) undecided.push(sequence);
      else this.settle(sequence, false);
    });
    this.running = this.running.filter(({ native }) => native >= 0);
    return undecided;
  }

  private async decide(undecided: Sequence[]): Promise<void> {
    const answers = await Promise.allSettled(undecided.map(({ params, output }) => params.stops!(output)));
    undecided.forEach((sequence, index) => {
      // It may have been ended meanwhile.
      if (sequence.native < 0) return;
      const answer = answers[index]!;
      if (answer.status === "rejected") this.endWith(sequence, answer.reason);
      else this.settle(sequence, answer.value);
    });
    this.running = this.running.filter(({ native }) => native >= 0);
  }

  /** After a token: whether it was the last, and why. */
  private settle(sequence: Sequence, stops: boolean): void {
    const { params, output } = sequence;
    if (stops) this.finish(sequence, "stop");
    else if (this.isFull(sequence)) this.finish(sequence, "length");
    else if (sequence.aborted) this.finish(sequence, "abort");
    params.onToken?.(output);
  }

  private isFull({ output, params, length }: Sequence): boolean {
    return output.tokenIds.length >= params.maxTokens || length >= this.options.maxModelLen;
  }

  private countVersion({ versions, tokenIds }: SequenceOutput): void {
    const last = versions.at(-1);
    if (last?.version === this.version) last.end = tokenIds.length;
    else versions.push({ version: this.version, start: tokenIds.length - 1, end: tokenIds.length });
  }

  private endWith(sequence: Sequence, error: unknown): void {
    this.end(sequence);
    this.observe(sequence);
    sequence.reject(error);
  }

  private finish(sequence: Sequence, finish: SequenceOutput["finish"]): void {
    this.end(sequence);
    sequence.output.finish = finish;
    this.observe(sequence);
    sequence.resolve(sequence.output);
  }

  private observe(sequence: Sequence): void {
    this.observer.finished(sequence, (performance.now() - sequence.submittedAt) / 1000);
  }

  private end(sequence: Sequence): void {
    this.prefixes.remove(sequence);
    if (sequence.native >= 0) this.sampler.free(sequence.native);
    sequence.native = -1;
    sequence.cached = 0;
  }

  private preempt(sequence: Sequence): void {
    this.preemptions += 1;
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

/** Once: what starts over from its tokens has its prompt's scores already. */
function wantsPrompt({ params, output }: Sequence): boolean {
  return params.promptLogprobs === true && output.promptLogprobs === null;
}

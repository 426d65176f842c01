import type { Sampler, SamplerResult } from "molt-native";
import { type Deferred, deferred, failure } from "../../deferred.ts";
import { messageOf, RunnerError } from "../../errors.ts";
import type { PauseMode } from "../client.ts";
import type { SamplingParams } from "../types.ts";
import { ExpertRoutes } from "./expert-routes.ts";
import { uniform } from "./philox.ts";

export type SamplerLike = Pick<Sampler, "step" | "fork" | "free" | "freePages" | "receive" | "checksum">;

export interface SchedulerOptions {
  pageSize: number;
  numPages: number;
  /** In one step. */
  maxNumSeqs: number;
  /** In one step: prompts beyond it wait. A longer prompt goes alone. */
  maxBatchedTokens: number;
  /** Prompt and output. */
  maxModelLen: number;
}

export interface SequenceParams extends Pick<SamplingParams, "temperature" | "topP" | "topK" | "maxTokens" | "seed"> {
  prompt: ArrayLike<number>;
  /** The one that ends the output is part of it. */
  stopTokenIds: ReadonlySet<number>;
  /** Only within one salt are cached prompts shared. */
  cacheSalt?: string | null;
  promptLogprobs?: boolean;
  /** Whether the newest token ends the output (stop strings); the next step waits for it. */
  stops?: (output: SequenceOutput) => Promise<boolean>;
  /** After each token, once it is known whether it is the last. */
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
  /** At temperature 1, NaN for the first; null unless asked for. */
  promptLogprobs: Float32Array | null;
  /** Of prompt and output but the newest token; none where the sampler tells none. */
  routes: ExpertRoutes;
  /** Null until it has ended. */
  finish: "stop" | "length" | "abort" | null;
}

/** For metrics. */
export interface SchedulerObserver {
  firstToken(seconds: number): void;
  finished(sequence: { params: SequenceParams; output: SequenceOutput }, seconds: number): void;
}

interface Sequence extends Deferred<SequenceOutput> {
  requestId: string;
  /** `performance.now()`. */
  submittedAt: number;
  /** Null where it shares nothing. */
  prefix: string | null;
  /** Its whole prompt is cached, of the present weights: equal prompts take its pages. */
  shares: boolean;
  params: SequenceParams;
  output: SequenceOutput;
  /** Prompt and output. */
  length: number;
  /** Tokens in the cache. */
  cached: number;
  /** The sampler's id; -1 while it holds no pages. */
  native: number;
  aborted: boolean;
}

/**
 * Continuous batching: every step takes one token further whatever runs, and lets in what waits, first come first
 * served, as sequences and pages allow. Out of pages, the youngest gives its up and starts over from its tokens. Only
 * `plan` and `apply` change what runs, never during a step.
 */
export class Scheduler {
  version = "default";
  preemptions = 0;
  /** Prompt tokens looked for in the cache, and found, ever. */
  readonly prefixes = { queries: 0, hits: 0 };
  private readonly breakdown = failure();
  failure: RunnerError | null = null;
  /** When the sampler fails: the engine is of no more use. Never resolves. */
  readonly failed = this.breakdown.promise;
  observer: SchedulerObserver = { firstToken() {}, finished() {} };
  private waiting: Sequence[] = [];
  /** Oldest first. */
  private running: Sequence[] = [];
  /** While paused. */
  private arrived: Sequence[] = [];
  private paused: PauseMode | null = null;
  private looping = false;
  /** From a step's plan to what its tokens end. */
  private stepping = false;
  private nextNative = 0;
  private idleWaiters: (() => void)[] = [];

  constructor(
    private readonly sampler: SamplerLike,
    private readonly options: SchedulerOptions,
  ) {}

  /** Prompt and one token fit `maxModelLen`. */
  submit(requestId: string, params: SequenceParams): { output: Promise<SequenceOutput>; abort: () => void } {
    if (this.failure) return { output: Promise.reject(this.failure), abort: () => {} };
    const { length } = params.prompt;
    const prefix = length > this.options.pageSize && !params.promptLogprobs ? prefixKey(params) : null;
    const none = { promptLogprobs: null, routes: new ExpertRoutes(), finish: null };
    const output: SequenceOutput = { tokenIds: [], logprobs: [], versions: [], ...none };
    const state = { length, cached: 0, native: -1, shares: false, aborted: false, submittedAt: performance.now() };
    const sequence: Sequence = { requestId, params, prefix, output, ...state, ...deferred<SequenceOutput>() };
    (this.paused ? this.arrived : this.waiting).push(sequence);
    this.wake();
    return { output: sequence.promise, abort: () => this.abortWhere((candidate) => candidate === sequence) };
  }

  /** How many ended, with what they have. All without ids. */
  abort(requestIds?: ReadonlySet<string>): number {
    return this.abortWhere(({ requestId }) => !requestIds || requestIds.has(requestId));
  }

  /**
   * Resolves when nothing is sampled: after the running step (`abort`, `keep`), or when all that came before has ended
   * (`wait`). New requests wait for `resume`. With `clearCache` kept requests start over from their tokens.
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
    // The weights may have changed.
    for (const sequence of this.running) sequence.shares = false;
    this.waiting.push(...this.arrived.splice(0));
    this.wakeIdle();
    this.wake();
  }

  get isPaused(): boolean {
    return this.paused !== null;
  }

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

  /** Pages taken, 0 to 1. */
  get cacheUsage(): number {
    return 1 - this.sampler.freePages() / this.options.numPages;
  }

  private wake(): void {
    if (this.looping || this.failure) return;
    this.looping = true;
    // A turn of the event loop later: what arrived together starts together.
    setImmediate(() => this.loop());
  }

  private async loop(): Promise<void> {
    try {
      for (let batch = this.plan(); batch.length > 0; batch = this.plan()) {
        this.stepping = true;
        const result = await this.sampler.step(this.encode(batch));
        // Until it is known which tokens were the last: an abort meanwhile must not hide that.
        await this.apply(batch, result);
        this.stepping = false;
      }
    } catch (error) {
      this.fail(error);
    }
    this.looping = false;
    this.wakeIdle();
  }

  private plan(): Sequence[] {
    if (this.paused === "abort" || this.paused === "keep") return [];
    while (this.pagesToGrow() > this.sampler.freePages()) this.preempt(this.running.at(-1)!);
    this.admit(this.sampler.freePages() - this.pagesToGrow());
    return [...this.running];
  }

  private pagesToGrow(): number {
    return this.running.reduce((sum, sequence) => sum + this.newPages(sequence), 0);
  }

  /** A prompt that another is about to compute waits a step, then takes its pages. */
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
      const holder = this.running.find(({ shares, prefix }) => shares && prefix === next.prefix);
      const shared = holder ? Math.min(next.params.prompt.length, next.length - 1) : 0;
      free -= this.pages(next.length) - Math.floor(shared / this.options.pageSize);
      tokens += next.length - shared;
      if (free < 0 || (tokens > this.options.maxBatchedTokens && this.running.length > 0)) break;
      this.enter(next, holder, shared);
      // One token's output leaves nothing to share.
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
      if (holder.output.routes.positions > 0) sequence.output.routes.share(holder.output.routes, shared);
    }
    this.prefixes.queries += sequence.length;
    this.prefixes.hits += shared;
    this.running.push(sequence);
  }

  private encode(batch: Sequence[]) {
    const cu = new Int32Array(batch.length + 1);
    batch.forEach(({ length, cached }, index) => {
      cu[index + 1] = cu[index]! + length - cached;
    });
    const tokens = new Int32Array(cu[batch.length]!);
    batch.forEach(({ params: { prompt }, output, length, cached }, index) => {
      for (let position = cached, at = cu[index]!; position < length; position++, at++) {
        tokens[at] = position < prompt.length ? prompt[position]! : output.tokenIds[position - prompt.length]!;
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

  private async apply(batch: Sequence[], result: SamplerResult): Promise<void> {
    const now = performance.now();
    const stops = await Promise.allSettled(batch.map((sequence, index) => this.append(sequence, index, result, now)));
    batch.forEach((sequence, index) => {
      // Ended meanwhile.
      if (sequence.native < 0) return;
      const answer = stops[index]!;
      if (answer.status === "rejected") this.end(sequence, null, answer.reason);
      else this.settle(sequence, answer.value);
    });
    this.running = this.running.filter(({ native }) => native >= 0);
  }

  /** Whether the token, or the text, ends the output. */
  private async append(sequence: Sequence, index: number, result: SamplerResult, now: number): Promise<boolean> {
    const { output, params } = sequence;
    const token = result.tokens[index]!;
    const logprob = result.logprobs[index]!;
    if (!Number.isFinite(logprob)) {
      throw new RunnerError(`the log-probability of token ${token} is ${logprob}: broken weights?`);
    }
    if (wantsPrompt(sequence)) output.promptLogprobs = result.promptLogprobs[index]!;
    if (output.tokenIds.length === 0) this.observer.firstToken((now - sequence.submittedAt) / 1000);
    const { cached, length } = sequence;
    if (result.routes) output.routes.add(result.routes[index]!, cached, length - cached);
    if (sequence.cached < params.prompt.length) sequence.shares = sequence.prefix !== null;
    sequence.cached = sequence.length;
    sequence.length += 1;
    output.tokenIds.push(token);
    output.logprobs.push(logprob);
    this.countVersion(output);
    return params.stopTokenIds.has(token) || (params.stops?.(output) ?? false);
  }

  private settle(sequence: Sequence, stops: boolean): void {
    const { params, output } = sequence;
    const isFull = output.tokenIds.length >= params.maxTokens || sequence.length >= this.options.maxModelLen;
    const finish = stops ? "stop" : isFull ? "length" : sequence.aborted ? "abort" : null;
    if (finish !== null) this.end(sequence, finish);
    params.onToken?.(output);
  }

  private countVersion({ versions, tokenIds }: SequenceOutput): void {
    const last = versions.at(-1);
    if (last?.version === this.version) last.end = tokenIds.length;
    else versions.push({ version: this.version, start: tokenIds.length - 1, end: tokenIds.length });
  }

  /** Without a `finish`: by the error. */
  private end(sequence: Sequence, finish: SequenceOutput["finish"], error?: unknown): void {
    sequence.output.finish = finish;
    this.freePages(sequence);
    this.observer.finished(sequence, (performance.now() - sequence.submittedAt) / 1000);
    if (finish === null) sequence.reject(error);
    else sequence.resolve(sequence.output);
  }

  private freePages(sequence: Sequence): void {
    if (sequence.native >= 0) this.sampler.free(sequence.native);
    sequence.native = -1;
    sequence.cached = 0;
    sequence.shares = false;
  }

  private preempt(sequence: Sequence): void {
    this.preemptions += 1;
    this.freePages(sequence);
    this.running.splice(this.running.indexOf(sequence), 1);
    this.waiting.unshift(sequence);
  }

  private abortWhere(matches: (sequence: Sequence) => boolean): number {
    const chosen = [...this.running, ...this.waiting, ...this.arrived].filter(matches);
    for (const sequence of chosen) {
      // It ends with the running step's token.
      if (this.stepping && sequence.native >= 0) sequence.aborted = true;
      else this.end(sequence, "abort");
    }
    const stays = ({ output }: Sequence) => output.finish === null;
    this.running = this.running.filter(stays);
    this.waiting = this.waiting.filter(stays);
    this.arrived = this.arrived.filter(stays);
    return chosen.length;
  }

  private fail(error: unknown): void {
    this.failure = new RunnerError(`the sampler failed: ${messageOf(error)}`, { cause: error });
    for (const { reject } of [...this.running, ...this.waiting, ...this.arrived]) reject(this.failure);
    this.running = [];
    this.waiting = [];
    this.arrived = [];
    this.breakdown.reject(this.failure);
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

/** Once: a restart has its scores already. */
function wantsPrompt({ params, output }: Sequence): boolean {
  return params.promptLogprobs === true && output.promptLogprobs === null;
}

/** Equal for equal prompts under one salt alone. */
function prefixKey({ prompt, cacheSalt }: SequenceParams): string {
  const { buffer, byteOffset, byteLength } = Int32Array.from(prompt);
  return `${Buffer.from(buffer, byteOffset, byteLength).toString("latin1")}${cacheSalt ?? ""}`;
}

/**
 * The contract of the native addon. Everything that touches tensors of a model runs on one native thread and
 * returns a promise; the small `Tensor` operations of a loss run on the JavaScript thread between awaited calls.
 * Every rejected promise carries an `Error` whose message is the C++ one.
 */

/** Shape and numbers of a decoder, read from a Hugging Face `config.json` by `runner/src/data/decoder.ts`. */
export interface DecoderConfig {
  vocabSize: number;
  hiddenSize: number;
  intermediateSize: number;
  numLayers: number;
  numHeads: number;
  numKvHeads: number;
  headDim: number;
  /** `[headDim / 2]` angle a position of each pair of dimensions turns by, whatever kind of rope the model has. */
  inverseFrequencies: number[];
  /** Multiplies cosines and sines (yarn's attention factor); 1 for most. */
  ropeScale: number;
  /** `[numLayers]` keys each query of a layer sees, its own included; 0 is all before it. */
  windows: number[];
  rmsNormEps: number;
  /** The head's matrix is the embedding's. */
  tieWordEmbeddings: boolean;
  /** RMS norms over each head of the queries and keys (Qwen3). */
  qkNorm: boolean;
  /** Absent where every layer is dense. */
  moe?: MoeConfig;
}

/** Layers that are mixtures of experts: a router's softmax over all, of which each token takes the likeliest. */
export interface MoeConfig {
  numExperts: number;
  expertsPerToken: number;
  expertIntermediateSize: number;
  /** The chosen experts' weights sum to 1. */
  normTopkProb: boolean;
  /** `[numLayers]` 1 where the layer is a mixture. */
  layers: number[];
}

/** Uniform: from -bound to bound. */
export type ParameterInit = { kind: "normal"; std: number } | { kind: "uniform"; bound: number } | { kind: "ones" };

/** One parameter of a unit. `role` is what the C++ asks for; `name` is the checkpoint's tensor. */
export interface ParameterDescription {
  role: string;
  name: string;
  shape: number[];
  init: ParameterInit;
  /** Weight decay applies (matrices, not norms). */
  decay: boolean;
  /** Which one, of an expert's parameters. */
  expert?: number;
}

/**
 * A unit is at once what is sharded, what is checkpointed in the backward pass and what is gathered.
 * Roles. embedding: `embed`. layer: `input_norm q k v q_norm k_norm o post_norm gate up down`, and where the model has
 * it the bias of a projection: `q_bias`; a mixture's has a last `router` (`[E, hidden]`) in place of `gate up down`.
 * head: `norm` and, unless tied, `head`; or, of a critic, `value` (`[1, hidden]`), in float32 whatever the model
 * computes in.
 */
export interface UnitDescription {
  kind: "embedding" | "layer" | "head";
  parameters: ParameterDescription[];
  /** Of a mixture: `expert_gate`, `expert_up` of expert 0, of expert 1, ..., then `expert_down` of each. */
  experts?: ParameterDescription[];
  /**
   * Where there are adapters, these parameters alone are trained: `q_lora_A` `[r, in]` and `q_lora_B` `[out, r]` make
   * the weight of role `q` into W + scale · B · A, in float32, wherever it is computed with, read, saved or sent.
   * An empty list freezes the unit. The sampler takes no notice of them.
   */
  adapters?: { scale: number; parameters: ParameterDescription[] };
}

/** Where a tensor's bytes lie: `offset` counts from the file's start. Only `F32`, `BF16` and `F16` are read. */
export interface TensorLocation {
  name: string;
  file: string;
  offset: number;
  dtype: "F32" | "BF16" | "F16";
  shape: number[];
}

/** A float32 (or bool, from comparisons) tensor with libtorch's autograd. */
export class Tensor {
  static from(data: Float32Array, shape?: number[]): Tensor;
  readonly shape: number[];
  readonly requiresGrad: boolean;
  add(other: Tensor | number): Tensor;
  sub(other: Tensor | number): Tensor;
  mul(other: Tensor | number): Tensor;
  div(other: Tensor | number): Tensor;
  neg(): Tensor;
  exp(): Tensor;
  log(): Tensor;
  clamp(min: number | null, max: number | null): Tensor;
  minimum(other: Tensor): Tensor;
  maximum(other: Tensor): Tensor;
  lt(other: Tensor | number): Tensor;
  gt(other: Tensor | number): Tensor;
  /** Takes from `this` where `condition` holds, from `other` elsewhere. No gradient flows where it is not taken. */
  where(condition: Tensor, other: Tensor | number): Tensor;
  /** Sum of all elements, shape `[]`. */
  sum(): Tensor;
  detach(): Tensor;
  /** Values, copied; waits on the native thread, so whatever was queued before is done. */
  data(): Promise<Float32Array>;
  /** Frees now what the collector would free later. */
  dispose(): void;
}

/** Disposes every tensor made inside `body`, except those returned (a tensor, an array or an object of tensors). */
export function scope<T>(body: () => T): T;

export interface ProcessGroupOptions {
  host: string;
  port: number;
  rank: number;
  worldSize: number;
  /** Keys of the store are prefixed, so several groups share one store. */
  prefix: string;
  /** Rank 0 normally serves the store. */
  serveStore: boolean;
  timeoutMs: number;
  /**
   * `nccl` joins GPUs, of builds that have it. `vllm` is rank 0 of the group that vLLM's engines form for weights, over
   * NCCL, with the store that they are told of; `prefix` does not count. Default: nccl where models live on a GPU, else
   * gloo.
   */
  backend?: "gloo" | "nccl" | "vllm";
}

/** c10d over Gloo, or NCCL. Operations are collective; each rejects when its deadline passes or a peer dies. */
export class ProcessGroup {
  static create(options: ProcessGroupOptions): Promise<ProcessGroup>;
  readonly rank: number;
  readonly worldSize: number;
  /** In place over all ranks; resolves with the reduced copy. */
  allReduce(data: Float64Array, op: "sum" | "max"): Promise<Float64Array>;
  barrier(): Promise<void>;
  /** Ends connections and the store; later calls reject. Safe to call twice. */
  close(): void;
}

/** Times are milliseconds since the epoch; 0 where it has not come to that. */
export interface Collective {
  name: "all-gather" | "reduce-scatter" | "all-reduce" | "all-to-all" | "broadcast" | "barrier";
  bytes: number;
  start: number;
  end: number;
  /** While the native thread could do nothing but wait for it. */
  waitStart: number;
  waitEnd: number;
}

/** Records this process's collectives from now on, or no more; returns those recorded until now. */
export function recordCollectives(on: boolean): Collective[];

/**
 * What of `backend: "vllm"` needs no GPU: serves NCCL's unique id (128 bytes) on this port as vLLM's engines read it.
 * Returns what ends the server.
 */
export function serveUniqueId(port: number, uniqueId: Uint8Array): () => void;

/** Rows laid end to end. No padding. */
export interface PackedRows {
  /** `[T]` token ids. */
  tokens: Int32Array;
  /** `[B+1]` row boundaries in `tokens`. */
  cu: Int32Array;
  /** `[T]` the id whose log-probability position t predicts (the next token), or -1 where none is wanted. */
  targets: Int32Array;
  /** `[T]` temperature that divides the logits at t. */
  temperatures: Float32Array;
  /** `[T, mixtures, K]` ids of experts that take the place of a token's own choices in all mixtures; -1 keeps these. */
  routes?: Int16Array;
  /** `[B]` weight of each row's balance loss, whose gradient `backward` then adds; none where absent. */
  balance?: Float32Array;
}

export interface ModelOptions {
  config: DecoderConfig;
  units: UnitDescription[];
  /** Ranks that shard this model; null for one rank. */
  group: ProcessGroup | null;
  trainable: boolean;
  /**
   * What matmuls and attention compute in; parameters are cast where they are gathered. The shards, their gradients,
   * reductions, the residual stream, norms and the softmax over the vocabulary are float32. Default float32.
   */
  dtype?: "float32" | "bfloat16";
  /**
   * What backward has of the layers: `full` recomputes all but their inputs; `selective` also keeps attention and the
   * products before and after it; `none` keeps activations and gathered weights, which is faster and larger. Default
   * full.
   */
  gradientCheckpoint?: "full" | "selective" | "none";
  /** False keeps gathered weights until backward; `gradientCheckpoint: "none"` implies it. Default true. */
  reshardAfterForward?: boolean;
  /** Keeps whole float32 gradients over microbatches and sums them over ranks once, where they are read. */
  deferReduce?: boolean;
  /**
   * Ranks that are given the same rows: each runs its part of every row, and all see whole results. They compute the
   * same loss of them, and its gradient counts once.
   */
  contextGroup?: ProcessGroup | null;
  /** Ranks that share out the experts: the r-th has the r-th run of them. Null where each has all. */
  expertGroup?: ProcessGroup | null;
  /** Under `expertGroup`: the ranks that have the same experts and shard them; null for one. */
  expertDataGroup?: ProcessGroup | null;
  /** Rows of logits held at once by the head. Default 1024. */
  headChunk?: number;
  /** Mixtures' routers are not trained. */
  freezeRouter?: boolean;
}

export interface Scores {
  logp: Tensor;
  entropy: Tensor;
  /**
   * Sum over mixtures and rows of weight · E · Σ f · P: of the row's tokens, f is the share of choices that are an
   * expert's, and P its mean probability (arXiv 2101.03961, a row at a time).
   */
  balance: number;
  /** Of the choices that `routes` gave, in all mixtures, those that are not among the token's own. */
  routeMismatch: { differing: number; compared: number };
}

/** A decoder whose units are flat float32 shards over `group`. */
export class Model {
  static create(options: ModelOptions): Promise<Model>;
  /** Seeded random weights; the same for every number of ranks. */
  initialize(seed: number, only?: "adapters"): Promise<void>;
  /** Every parameter must be among `tensors` with its exact shape; but a `value` head keeps what it has. */
  load(tensors: TensorLocation[]): Promise<void>;
  /** The model without its adapters, not trainable; the two share one copy of the weights. */
  base(): Promise<Model>;
  /**
   * Log-probabilities and entropies `[T]` at the positions where `targets >= 0`, zeros elsewhere; both differentiable
   * when `grad`. Nothing of shape `[T, vocabulary]` outlives a chunk.
   */
  forward(rows: PackedRows, grad: boolean): Promise<Scores>;
  /** Of a critic, `[T]`: a value at the positions where `targets >= 0`, zeros elsewhere; differentiable when `grad`. */
  values(rows: PackedRows, grad: boolean): Promise<Tensor>;
  /** Adds the gradient of the scalar `loss` to the float32 shards. Collective over the group. */
  backward(loss: Tensor): Promise<void>;
  zeroGradients(): Promise<void>;
  /** L2 norm of the gradient over all shards of all ranks. Collective. */
  gradientNorm(): Promise<number>;
  /** Names of the trained parameters with a NaN or infinite gradient on any rank. Collective. */
  nonFiniteGradients(): Promise<string[]>;
  /** One parameter, gathered, float32. Collective. */
  read(name: string): Promise<Float32Array>;
  readGradient(name: string): Promise<Float32Array>;
  /** Overwrites one parameter's gradient (tests that inject NaN). */
  writeGradient(name: string, value: Float32Array): Promise<void>;
  /** Rank 0 writes `header` and then every parameter (or adapter) in `units` order, float32. Collective. */
  save(path: string, header: Uint8Array, only?: "adapters"): Promise<void>;
  /**
   * Rank 0 of the model's group broadcasts every parameter, in `units` order, as root of `transfer`, and resolves with
   * the checksum of what it sent; others pass null, and resolve with "". Tensors lie end to end in buckets; one ends
   * with the tensor that exceeds `bucketBytes`, as vLLM's `packed`. Samplers know the defaults alone. Collective.
   */
  broadcast(
    transfer: ProcessGroup | null,
    format?: { dtype: "float32" | "bfloat16"; bucketBytes: number },
  ): Promise<string>;
  /** Hash of all parameters in `units` order, in hexadecimal: `Sampler.checksum` on equal weights. Collective. */
  checksum(): Promise<string>;
  /** Number of float32 values that this rank trains, all units. */
  readonly shardSize: number;
  dispose(): void;
}

export interface AdamWOptions {
  beta1: number;
  beta2: number;
  eps: number;
  weightDecay: number;
}

/** Fused AdamW on the float32 shards of a model. */
export class AdamW {
  constructor(model: Model, options: AdamWOptions);
  /** Steps taken; part of a checkpoint. */
  stepCount: number;
  /** One update with gradients times `gradientScale` (clipping), then nothing: call `zeroGradients` next. */
  step(learningRate: number, gradientScale: number): Promise<void>;
  /** Writes `header`, then this rank's weights, first moments and second moments, each `shardSize` float32. Fsynced. */
  saveShard(path: string, header: Uint8Array): Promise<void>;
  /** Reads the three arrays back from byte `offset` of `path`. */
  loadShard(path: string, offset: number): Promise<void>;
}

export interface SamplerOptions {
  config: DecoderConfig;
  units: UnitDescription[];
  /** Tokens a page of the key/value cache holds. */
  pageSize: number;
  numPages: number;
  /** Of weights, activations and the cache; the residual stream and softmax are float32. Default float32. */
  dtype?: "float32" | "bfloat16";
  /** Plain ATen throughout: what the faster paths are held to in tests. Default false. */
  plain?: boolean;
  /** Steps tell each new token's experts. Default false. */
  routes?: boolean;
}

/** One step of continuous batching: any mix of prompts (many new tokens) and running sequences (one). */
export interface SamplerBatch {
  /** `[B]` ids chosen by the caller, each at most once a step; an unknown id opens a new sequence. */
  sequences: Int32Array;
  /** `[B+1]` boundaries of each sequence's new tokens. */
  cu: Int32Array;
  tokens: Int32Array;
  /** `[B]` 0 is greedy. */
  temperatures: Float32Array;
  /** `[B]` 1 is off. */
  topP: Float32Array;
  /** `[B]` 0 is off. */
  topK: Int32Array;
  /** `[B]` in [0, 1): the draw, made by the caller from the request's seed and position. */
  uniforms: Float64Array;
  /** `[B]` 1 also scores the sequence's new tokens. Default: none. */
  promptLogprobs?: Uint8Array;
}

export interface SamplerResult {
  /** `[B]` the next token of each sequence. */
  tokens: Int32Array;
  /** `[B]` over the full vocabulary after temperature (at temperature 0: of the unscaled distribution). */
  logprobs: Float32Array;
  /**
   * `[B]` null where not asked for. Log-probabilities at temperature 1 of the sequence's new tokens, each given all
   * before it; NaN where the last token before it belongs to an earlier step, as its logits are gone: for the first of
   * the new tokens.
   */
  promptLogprobs: (Float32Array | null)[];
  /** `[B]` where `SamplerOptions.routes`: experts of the sequence's new tokens, `[count, mixtures, K]`, ascending. */
  routes?: Int16Array[];
}

/** A decoder with a paged key/value cache. Weights are whole (not sharded) and replaced in place. */
export class Sampler {
  static create(options: SamplerOptions): Promise<Sampler>;
  load(tensors: TensorLocation[]): Promise<void>;
  /** Receives what a model broadcasts, in this order: every parameter's name, once. */
  receive(transfer: ProcessGroup, names: string[]): Promise<void>;
  /** Of the float32 values that came in, in `units` order, whatever dtype they are kept in. */
  checksum(): Promise<string>;
  /** Rejects with "out of pages" before anything has changed. */
  step(batch: SamplerBatch): Promise<SamplerResult>;
  /**
   * Opens `to` with the first `length` cached tokens of `from`. Whole pages are shared until the last holder is freed,
   * a page begun is copied: at most one page is taken; throws "out of pages" before anything has changed. The next step
   * appends to each independently.
   */
  fork(from: number, to: number, length: number): void;
  /** Returns the sequence's pages. */
  free(sequence: number): void;
  freePages(): number;
  dispose(): void;
}

/** Threads for the native thread's operators. */
export function setThreads(count: number): Promise<void>;
/** Bytes libtorch's CPU allocator holds now and at most since the last call with `reset`. */
export function memory(reset?: boolean): { current: number; peak: number };
export function versions(): { torch: string; cuda: boolean };

import { needsCritic } from "../../algorithms/advantages/registry.ts";
import type { Recipe } from "../schema.ts";
import type { Layout } from "./layout.ts";
import type { ModelShape } from "./shape.ts";

export type TrainerMemory = ReturnType<typeof trainerMemory>;
export type EngineMemory = ReturnType<typeof engineMemory>;

/** The rest holds the CUDA context, NCCL's buffers and the allocator's gaps, or the other processes of a machine. */
const usable = 0.92;
/** Weights, gradients and each moment of the optimizer are float32, as the residual stream is. */
const float32 = 4;
/** Positions whose logits the head holds at once (native/index.d.ts). */
const headChunk = 1024;
/** Bytes of cache that the embedded engine takes where the recipe does not say (engines/embedded/engine.ts). */
const embeddedCache = 2 ** 30;

/** Bytes on one device of the trainer, by part; and in its node's host, of which it has an equal part. */
export function trainerMemory(recipe: Recipe, model: ModelShape, layout: Layout) {
  const { actor, algo, fsdp, ref } = recipe;
  const { parameters, expertLayers, vocabulary, hidden } = model;
  const { ranks, expertRanks, computeBytes, microbatchTokens, device } = layout;
  const shard = (float32 * parameters.total) / ranks;
  const hasAdapters = actor.lora.rank > 0;
  const trained = (float32 * trainedParameters(recipe, model)) / ranks;
  // Of the experts, a rank gathers and reduces only its place's.
  const gathered = parameters.total - parameters.experts + parameters.experts / expertRanks;
  const layer = parameters.layer + parameters.experts / Math.max(1, expertLayers) / expertRanks;
  const unit = Math.max(layer, vocabulary * hidden);
  const isAlone = ranks === 1 && computeBytes === float32;
  const copies = layout.isGatherKept ? gathered : isAlone ? layer : Math.min(gathered, 2 * unit);
  const moments = (actor.optimizer === "muon" ? 1 : 2) * trained;
  // Its weights are those below the policy's adapters.
  const isBase = hasAdapters && [null, actor.model_name_or_path].includes(ref.model_name_or_path);
  const hasReference = algo.kl.init_coef > 0 && layout.engines.count > 0;
  const hasCritic = needsCritic(algo.advantage.estimator) && layout.engines.count > 0;
  const isAway = { optimizer: fsdp.offload !== "none", rest: fsdp.offload === "full" };
  const isDeferred = fsdp.defer_reduce && ranks > 1;
  const isSummed = hasAdapters || (ranks > 1 && !isDeferred);
  const whole = float32 * (hasAdapters ? trainedParameters(recipe, model) : gathered);
  const gradientsOf = (size: number) => size * (computeBytes + (isSummed ? float32 : 0));
  // What was backward before is still being summed; Gloo receives beside what it sends.
  const underWay = ranks > 1 && !isDeferred ? float32 * (device.name === "CPU" ? 2 : 1) * unit : 0;
  const parts: Record<string, number> = {
    weights: isAway.rest ? 0 : shard + (hasAdapters ? trained : 0),
    gradients: (isDeferred ? whole : 0) + (isAway.rest ? 0 : trained),
    optimizer: isAway.optimizer ? 0 : moments,
    reference: hasReference && !isBase ? (float32 * (model.reference ?? parameters.total)) / ranks : 0,
    // Taken to have the policy's shape.
    critic: hasCritic ? 4 * shard + (isDeferred ? float32 * gathered : 0) : 0,
    // The next unit is gathered while one computes; a rank alone computes float32 on its shard itself.
    "gathered layers": isAlone && !hasAdapters ? 0 : computeBytes * copies,
    // Of the unit that goes backward: in the compute dtype, and summed in float32 until they are reduced.
    "unit's gradients": hasAdapters ? gradientsOf(layer) : Math.max(gradientsOf(unit), gradientsOf(layer) + underWay),
    activations: microbatchTokens * activationBytes(recipe, model, layout),
    // On a CPU one fused pass turns logits into their gradient; elsewhere exponentials and gradient are beside them.
    "logits chunk":
      Math.min(headChunk, microbatchTokens) * vocabulary * (device.name === "CPU" ? computeBytes : 3 * float32),
  };
  const total = Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);
  const offloaded = (isAway.optimizer ? moments : 0) + (isAway.rest ? 2 * shard : 0);
  const host = (usable * device.hostMemory) / layout.ranksPerNode;
  return { parts, total, available: availableBytes(layout), offloaded, host };
}

/** What the optimizer steps: all, or the factors of each adapted projection, [rank, in] and [out, rank]. */
export function trainedParameters({ actor }: Recipe, model: ModelShape): number {
  const { rank, target_modules: targets } = actor.lora;
  const { layers, hidden, heads, headWidths, cache, feedForward, parameters } = model;
  if (rank === 0) return parameters.total;
  const keys = cache.values / 2;
  const widths: Record<string, number> = {
    q_proj: heads * headWidths.key,
    k_proj: keys,
    v_proj: keys,
    o_proj: heads * headWidths.value,
  };
  return layers * rank * targets.reduce((sum, name) => sum + hidden + (widths[name] ?? feedForward), 0);
}

/** Of a token: each layer's input, and the insides of one layer or of all; while it goes backward, their gradients. */
function activationBytes({ actor }: Recipe, model: ModelShape, { computeBytes, contextRanks }: Layout): number {
  const { layers, hidden, heads, headWidths, cache, feedForward, expertsPerToken } = model;
  // Beside its own, each of a rank's two pieces of a shared row has the keys and values until its end.
  const seen = contextRanks > 1 ? contextRanks + 1.5 : 1;
  const attention = heads * (headWidths.key + headWidths.value) + seen * cache.values;
  // What matmuls and attention give, what is sent to experts and back; then the gate, gated product and two norms.
  const outputs = computeBytes * (attention + hidden + 2 * feedForward + 2 * expertsPerToken * hidden);
  const insides = outputs + computeBytes * 2 * feedForward + 2 * float32 * hidden;
  const kept = { full: 0, selective: outputs, none: insides }[actor.gradient_checkpoint];
  return layers * (float32 * hidden + kept) + 2 * insides;
}

/** Bytes on one device of an engine; and rows that the engine samples at once, of the mean length and the longest. */
export function engineMemory({ data, engine, vllm }: Recipe, model: ModelShape, layout: Layout) {
  const { parameters } = model;
  const { valueBytes, tensor, stages, expertShards, replicas } = layout.engines;
  const isVllm = engine.kind === "vllm";
  const own = (parameters.total - parameters.experts) / tensor / stages + parameters.experts / expertShards;
  // The embedded engine multiplies from a second copy, laid out for the processor (docs/index.md).
  const weights = own * valueBytes * (isVllm ? 1 : 2);
  const token = cacheBytes(model, layout);
  const available = isVllm ? vllm.gpu_memory_utilization * layout.device.memory : availableBytes(layout);
  const asked = Math.max(data.max_len, Math.min(engine.max_num_seqs * data.max_len, embeddedCache / token));
  // vLLM takes what is left, which must hold the longest row.
  const left = Math.max(token * data.max_len, available - weights);
  const cache = isVllm ? left : token * (engine.cache_tokens ?? asked);
  const atOnce = (length: number) => replicas * Math.min(engine.max_num_seqs, Math.floor(cache / token / length));
  const sequences = { mean: atOnce(layout.meanRow), longest: atOnce(data.max_len) };
  return { parts: { weights, cache }, total: weights + cache, available, sequences };
}

/** Of one token's keys and values on one device of an engine: heads fewer than its tensor ranks are copied. */
export function cacheBytes({ cache, layers }: ModelShape, { engines }: Layout): number {
  return (engines.valueBytes * cache.values * layers) / engines.stages / Math.min(engines.tensor, cache.shards);
}

/** Processes on a CPU share its memory. */
function availableBytes({ device, ranks, ranksPerNode, engines }: Layout): number {
  const processes = device.name === "CPU" ? Math.min(ranks, ranksPerNode) + engines.count : 1;
  return (usable * device.memory) / Math.max(1, processes);
}

import type { Recipe } from "../schema.ts";
import { draftTaken, overhead, reached } from "./devices.ts";
import type { Layout } from "./layout.ts";
import { cacheBytes, type EngineMemory, trainedParameters } from "./memory.ts";
import type { ModelShape } from "./shape.ts";

/** Bytes that one rank receives in a step, by collective; of weight sync, what each engine receives. */
type Traffic = ReturnType<typeof trafficOf>;

/** Seconds by what they go to. */
type Costs = Record<string, number>;

/** A batch of samples, and the seconds in which each sequence gets a token. */
interface Sampled {
  costs: Costs;
  tokenSeconds: number;
}

const nothing: Sampled = { costs: {}, tokenSeconds: 0 };

/** Seconds, tokens of a step's rows a second for each device, engines' included, and what the step waits for most. */
export function stepTime(recipe: Recipe, model: ModelShape, layout: Layout, engine: EngineMemory | null) {
  const { device, ranks, rows, meanRow } = layout;
  const traffic = trafficOf(recipe, model, layout);
  const training = ranks > 0 ? trainCosts(recipe, model, layout, traffic) : {};
  const train = total(training);
  const { costs: sampling, tokenSeconds } = engine ? sampled(recipe, model, layout, engine, train) : nothing;
  const generate = total(sampling);
  // Rank 0 collects the shards and meanwhile broadcasts them, through one port.
  const { node, network } = device.bandwidth;
  const port = device.name === "CPU" || layout.devices <= device.perNode ? node : network;
  const sync = ranks > 0 ? traffic["weight sync"] / (port * reached.link) : 0;
  const step = (recipe.train.max_staleness > 0 ? Math.max(train, generate) : train + generate) + sync;
  const [phase, costs] = train >= generate ? ["training", training] : ["sampling", sampling];
  const [most, seconds] = Object.entries(costs).sort((a, b) => b[1] - a[1])[0]!;
  const binding = sync > seconds ? "weight sync" : `${phase}: ${most}`;
  const tokensPerSecond = (rows * meanRow) / step / layout.devices;
  return { train, generate, sync, step, tokensPerSecond, tokenSeconds, binding, traffic };
}

function trafficOf(recipe: Recipe, model: ModelShape, layout: Layout) {
  const { fsdp, engine } = recipe;
  const { ranks, expertRanks, contextRanks, microbatches, computeBytes, scorings, updates, engines } = layout;
  const { total: all, experts } = model.parameters;
  const fromOthers = (group: number) => (group > 1 ? (group - 1) / group : 0);
  const shared = (all - experts) * fromOthers(ranks) + (experts / expertRanks) * fromOthers(ranks / expertRanks);
  const hasAdapters = recipe.actor.lora.rank > 0;
  const reduced = hasAdapters ? trainedParameters(recipe, model) * fromOthers(ranks) : shared;
  const sent = layout.rankTokens * layout.passes * computeBytes;
  return {
    // Adapters are added to their weights in float32.
    "all-gather": shared * (hasAdapters ? 4 : computeBytes) * microbatches * (scorings + (layout.isGatherKept ? 1 : 2)),
    "reduce-scatter": reduced * 4 * (fsdp.defer_reduce ? updates : microbatches),
    // There and back.
    "all-to-all": 2 * sent * model.expertLayers * model.hidden * model.expertsPerToken * fromOthers(expertRanks),
    "context gather": sent * (contextRanks - 1) * model.layers * model.cache.values,
    "weight sync": engines.count > 0 ? all * (engine.kind === "vllm" ? engines.valueBytes : 4) : 0,
  };
}

function trainCosts(recipe: Recipe, model: ModelShape, layout: Layout, traffic: Traffic): Costs {
  const { device, ranks, ranksPerNode, rankTokens, meanRow, microbatches, passes, computeBytes } = layout;
  const { bandwidth } = device;
  const { dense, experts } = operations(model);
  // A token attends to half of its row in the mean.
  const attention = model.layers * model.heads * (model.headWidths.key + model.headWidths.value) * meanRow;
  const seconds = (rankTokens * passes) / device.flops[computeBytes];
  const arithmetic = {
    matmuls: (seconds * dense) / reached.matmul,
    "experts' matmuls": (seconds * experts) / reached.experts,
    attention: (seconds * attention) / reached.attention,
    "passes through layers":
      microbatches * passes * (model.layers * overhead.layer + model.expertLayers * overhead.expertLayer),
  };
  // A ring over nodes goes through all their ports at once; what experts exchange, through a device's own.
  const ring = ranks > ranksPerNode ? Math.min(bandwidth.node, bandwidth.network * ranksPerNode) : bandwidth.node;
  const own = (group: number) => (group > ranksPerNode ? bandwidth.network : bandwidth.node);
  const shards = (traffic["all-gather"] + traffic["reduce-scatter"]) / (ring * reached.link);
  const stepped = (layout.updates * trainedParameters(recipe, model)) / ranks;
  const moved = recipe.fsdp.offload === "none" ? 0 : 16 * stepped;
  return {
    ...arithmetic,
    // Overlaps with the arithmetic of the layer before: only what is longer counts.
    "gathering and reducing shards": Math.max(0, shards - total(arithmetic)),
    "experts' all-to-all": traffic["all-to-all"] / (own(layout.expertRanks) * reached.link),
    "gathering keys and values": traffic["context gather"] / (own(layout.contextRanks) * reached.link),
    // Reads weights, gradients and two moments, writes all but gradients: 28 bytes a value.
    optimizer: (28 * stepped) / (bandwidth.memory * reached.memory),
    "moving state to and from the host": moved / (bandwidth.host * reached.link),
  };
}

/** Of one token's forward pass, without attention to other tokens: two for each value that it is multiplied with. */
function operations({ parameters, experts, expertsPerToken }: ModelShape): { dense: number; experts: number } {
  const routed = experts === 0 ? 0 : (parameters.experts / experts) * expertsPerToken;
  return { dense: 2 * (parameters.active - routed - parameters.embedding), experts: 2 * routed };
}

/** With as many batches in flight as `train.max_staleness` lets: one fewer while a batch is trained. */
function sampled(recipe: Recipe, model: ModelShape, layout: Layout, memory: EngineMemory, train: number): Sampled {
  const { max_in_flight, batch_size } = recipe.rollout;
  const { max_staleness } = recipe.train;
  const most = (max_in_flight ?? Infinity) / batch_size;
  const least = Math.max(1, Math.min(max_staleness, most));
  const fewest = batch(recipe, model, layout, memory, least);
  const idle = Math.max(0, 1 - train / total(fewest.costs));
  return max_staleness > 0 ? batch(recipe, model, layout, memory, Math.min(most, least + idle)) : fewest;
}

/**
 * Groups are sampled side by side, and one takes as long as its longest row. With lengths spread as x^a below a limit,
 * the mean has the share a / (a + 1) of it, and the longest of n the share na / (na + 1).
 */
function batch(recipe: Recipe, model: ModelShape, layout: Layout, memory: EngineMemory, batches: number): Sampled {
  const { data, rollout, vllm, engine } = recipe;
  const { rows, meanRow, engines, device } = layout;
  const { n_samples_per_prompt: samples, max_new_tokens, max_turns } = rollout;
  const share = Math.min(0.99, meanRow / data.max_len);
  const limit = Math.min(data.max_len, (max_new_tokens ?? Infinity) * max_turns);
  const spread = (samples * share) / (1 - share);
  const duration = (limit * spread) / (spread + 1);
  const inFlight = (batches * rows * limit * share) / duration / engines.count;
  const concurrent = Math.max(1, Math.min(inFlight, memory.sequences.mean));
  const positions = 1 + (engine.kind === "vllm" ? vllm.mtp_num_speculative_tokens : 0);
  const taken = (1 - draftTaken ** positions) / (1 - draftTaken);
  const steps = (duration / batches / taken) * Math.max(1, inFlight / concurrent);
  const step = Object.entries(decodeStep(model, layout, concurrent, positions));
  const { dense, experts } = operations(model);
  const perToken = dense / reached.matmul + experts / reached.experts;
  const isShared = engine.kind === "embedded" || vllm.enable_prefix_caching;
  const promptTokens = (rows / (isShared ? samples : 1)) * Math.max(0, meanRow - limit * share);
  const costs = {
    ...Object.fromEntries(step.map(([name, seconds]) => [name, steps * seconds])),
    prompts: (promptTokens * perToken) / device.flops[engines.valueBytes] / engines.count / engines.devices,
  };
  return { costs, tokenSeconds: total(Object.fromEntries(step)) / taken };
}

/** Seconds of an engine's step that gives `concurrent` sequences `positions` tokens each. */
function decodeStep(model: ModelShape, layout: Layout, concurrent: number, positions: number): Costs {
  const { engines, device } = layout;
  const { parameters, experts, expertsPerToken } = model;
  const local = concurrent / engines.replicas;
  const touched = experts === 0 ? 0 : 1 - (1 - expertsPerToken / experts) ** (concurrent * positions);
  const others = (parameters.total - parameters.experts) / engines.tensor / engines.stages;
  const weights = (others + (touched * parameters.experts) / engines.expertShards) * engines.valueBytes;
  const memory = device.bandwidth.memory * reached.memory;
  const { dense, experts: routed } = operations(model);
  const rate = device.flops[engines.valueBytes] * reached.matmul * engines.devices;
  const { node, network } = overhead.allReduce;
  return {
    "reading weights": weights / memory,
    "reading keys and values": (local * cacheBytes(model, layout) * layout.meanRow) / 2 / memory,
    "decoding matmuls": (concurrent * positions * (dense + routed)) / rate,
    "the engine's bookkeeping": overhead.decode + local * overhead.sequence,
    "all-reduces": engines.devices > 1 ? 2 * model.layers * (engines.devices > device.perNode ? network : node) : 0,
  };
}

function total(costs: Costs): number {
  return Object.values(costs).reduce((sum, seconds) => sum + seconds, 0);
}

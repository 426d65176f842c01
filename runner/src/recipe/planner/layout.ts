import { needsCritic } from "../../algorithms/advantages/registry.ts";
import type { Verb } from "../guardrails/index.ts";
import type { Recipe } from "../schema.ts";
import { deviceOf, meanShare } from "./devices.ts";
import type { ModelShape } from "./shape.ts";

const valueBytes = { float32: 4, bf16: 2 } as const;

export type Layout = ReturnType<typeof layoutOf>;

/** What a recipe's numbers come to on its devices: counts and tokens. */
export function layoutOf(recipe: Recipe, model: ModelShape, verb: Verb) {
  const { actor, algo, data, fsdp, rollout, run, train } = recipe;
  const isSft = verb === "sft";
  const ranks = verb === "eval" ? 0 : actor.num_nodes * actor.devices_per_node;
  const rows = isSft ? train.batch_size : rollout.batch_size * rollout.n_samples_per_prompt;
  const updates = isSft ? 1 : train.updates_per_batch;
  const meanRow = data.mean_len ?? meanShare * data.max_len;
  // A row is one rank's, or one context group's: 20 rows on 16 ranks take as long as 32.
  const rowsOfRank = Math.ceil(rows / updates / Math.max(1, ranks / fsdp.cp_size));
  const tokensOfUpdate = (rowsOfRank * meanRow) / fsdp.cp_size;
  const critics = !isSft && needsCritic(algo.advantage.estimator) ? 1 : 0;
  // Forward passes without gradient: old log-probabilities, the reference's, the critic's values.
  const scorings = (updates > 1 ? 1 : 0) + (!isSft && algo.kl.init_coef > 0 ? 1 : 0) + critics;
  const engines = enginesOf(recipe, isSft ? 0 : recipe.engine.count);
  return {
    device: deviceOf(run.device),
    /** Ranks and the devices of all engines. */
    devices: ranks + engines.count * engines.devices,
    /** 0 where nothing is trained. */
    ranks,
    ranksPerNode: actor.devices_per_node,
    /** Ranks that the experts are spread over, and that share one row. */
    expertRanks: model.experts > 0 ? fsdp.ep_size : 1,
    contextRanks: fsdp.cp_size,
    /** Of a step, and tokens of one. */
    rows,
    meanRow,
    longestRow: data.max_len,
    /** Tokens of the busiest rank in a step, its microbatches, and the most that one of them holds. */
    rankTokens: updates * tokensOfUpdate,
    microbatches: updates * Math.max(1, Math.ceil(tokensOfUpdate / train.max_tokens_per_device)),
    microbatchTokens: Math.min(train.max_tokens_per_device, Math.ceil((rows * data.max_len) / fsdp.cp_size)),
    updates,
    scorings,
    /** Forward passes' worth of a step: a backward pass is two, and full checkpoints go forward again. */
    passes: scorings + (1 + critics) * (actor.gradient_checkpoint === "full" ? 4 : 3),
    /** Whether a layer's gathered weights stay for the backward pass. */
    isGatherKept: actor.gradient_checkpoint === "none" || fsdp.reshard_after_forward === false,
    /** Of a value in matmuls. */
    computeBytes: valueBytes[fsdp.param_dtype],
    engines,
  };
}

/** `count` of them, the rest of one. */
export function enginesOf({ engine, vllm }: Recipe, count: number) {
  const isVllm = engine.kind === "vllm";
  const tensor = isVllm ? vllm.tensor_parallel_size : 1;
  const stages = isVllm ? vllm.pipeline_parallel_size : 1;
  const replicas = isVllm ? vllm.data_parallel_size : 1;
  const devices = tensor * stages * replicas;
  // Without expert parallel, each replica cuts every expert over its own devices.
  const expertShards = vllm.enable_expert_parallel ? devices : tensor * stages;
  return { count, devices, tensor, stages, replicas, expertShards, valueBytes: valueBytes[engine.dtype] };
}

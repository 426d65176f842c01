import { z } from "zod";
import { plannedKey, positiveInteger, section } from "./key.ts";

export const vllm = section("Options of vLLM's own, read when engine.kind is vllm.", {
  tensor_parallel_size: plannedKey(positiveInteger, 1, {
    description: "Devices that share each layer of an engine.",
    unit: "devices",
  }),
  pipeline_parallel_size: plannedKey(positiveInteger, 1, {
    description: "Groups of devices that an engine's layers are cut over.",
    unit: "stages",
  }),
  data_parallel_size: plannedKey(positiveInteger, 1, {
    description: "Copies of the attention weights within one engine; experts are spread over all of them.",
    unit: "replicas",
  }),
  enable_expert_parallel: plannedKey(z.boolean(), false, {
    description: "Spreads whole experts over an engine's devices instead of cutting each one.",
  }),
  gpu_memory_utilization: plannedKey(z.number().gt(0).max(1), 0.9, {
    description: "Part of a device's memory that the engine takes for weights and key/value cache.",
  }),
  enable_prefix_caching: plannedKey(z.boolean(), true, {
    description: "Keeps the key/value cache of prompts that several rollouts share.",
  }),
  mtp_num_speculative_tokens: plannedKey(z.int().min(0), 0, {
    description: "Tokens that the model's multi-token prediction drafts a step; 0 is off.",
    unit: "tokens",
  }),
  extra_args: plannedKey(z.array(z.string()), [], {
    description: "Further words of vLLM's command line, handed on as they are.",
  }),
});

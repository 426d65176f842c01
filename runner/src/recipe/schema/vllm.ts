import { z } from "zod";
import { plannedKey, positiveInteger, section } from "./key.ts";

export const vllm = section("Options of vLLM's own, read when engine.kind is vllm.", {
  tensor_parallel_size: plannedKey(positiveInteger, 1, "Devices that share each layer of an engine.", {
    unit: "devices",
  }),
  pipeline_parallel_size: plannedKey(positiveInteger, 1, "Stages that an engine's layers are cut into.", {
    unit: "stages",
  }),
  data_parallel_size: plannedKey(positiveInteger, 1, "Copies of the attention weights within one engine.", {
    unit: "replicas",
  }),
  enable_expert_parallel: plannedKey(z.boolean(), false, "Spreads whole experts over an engine's devices."),
  gpu_memory_utilization: plannedKey(z.number().gt(0).max(1), 0.9, "Part of a device's memory that it takes."),
  enable_prefix_caching: plannedKey(z.boolean(), true, "Keeps the cache of prompts that are shared."),
  mtp_num_speculative_tokens: plannedKey(z.int().min(0), 0, "Tokens that the model drafts a step; 0 is off.", {
    unit: "tokens",
  }),
  extra_args: plannedKey(z.array(z.string()), [], "Further words of vLLM's command line, handed on as they are."),
});

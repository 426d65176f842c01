import { z } from "zod";
import { key, optionalKey, positiveInteger, section } from "./key.ts";

const words = z.array(z.string().min(1));

export const vllm = section("Options of vLLM's own, read when engine.kind is vllm.", {
  command: key(words.min(1), ["vllm", "serve"], "Words that start vLLM's server, before the model and its flags.", {
    command: true,
  }),
  tensor_parallel_size: key(positiveInteger, 1, "Devices that share each layer of an engine.", { unit: "devices" }),
  pipeline_parallel_size: key(positiveInteger, 1, "Stages that an engine's layers are cut into.", { unit: "stages" }),
  data_parallel_size: key(positiveInteger, 1, "Copies of the attention weights within one engine.", {
    unit: "replicas",
  }),
  enable_expert_parallel: key(z.boolean(), false, "Spreads whole experts over an engine's devices."),
  gpu_memory_utilization: key(z.number().gt(0).max(1), 0.9, "Part of a device's memory that it takes."),
  enable_prefix_caching: key(z.boolean(), true, "Keeps the cache of prompts that are shared."),
  enforce_eager: key(z.boolean(), false, "Computes without CUDA graphs and compilation; on a CPU it must."),
  attention_backend: optionalKey(z.string().min(1), "Kernels of attention by vLLM's name; null is its own choice."),
  mtp_num_speculative_tokens: key(z.int().min(0), 0, "Tokens that the model drafts a step; 0 is off.", {
    unit: "tokens",
  }),
  sync_backend: key(z.enum(["directory", "nccl"]), "directory", "How it gets new weights: a folder, or a broadcast.", {
    metrics: ["sync_seconds"],
  }),
  extra_args: key(z.array(z.string()), [], "Further words of vLLM's command line, handed on as they are."),
});

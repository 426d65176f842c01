import { count } from "../arithmetic.ts";
import { type Guardrail, mendedBy } from "./finding.ts";

export const attached: Guardrail = {
  holds: "engine.count is the number of engine.urls, where there are any.",
  verbs: ["run", "eval"],
  keys: ["engine.urls", "engine.count"],
  check({ engine }) {
    const { length } = engine.urls;
    if (length === 0 || length === engine.count) return null;
    const message = `engine.count (${engine.count}) must be ${length}: engine.urls names ${count(length, "engine")}`;
    return mendedBy("engine.count", length, message);
  },
};

/** As vLLM refuses it when it starts. */
export const replicasOrStages: Guardrail = {
  holds: "A vLLM engine has replicas or pipeline stages, not both.",
  verbs: ["run", "eval"],
  keys: ["vllm.pipeline_parallel_size", "vllm.data_parallel_size", "engine.kind"],
  check({ engine, vllm }) {
    const { pipeline_parallel_size: stages, data_parallel_size: replicas } = vllm;
    if (engine.kind !== "vllm" || stages === 1 || replicas === 1) return null;
    const message = `vllm.pipeline_parallel_size (${stages}) must be 1 with vllm.data_parallel_size ${replicas}`;
    return mendedBy("vllm.pipeline_parallel_size", 1, `${message}: take vllm.tensor_parallel_size`);
  },
};

export const draftedPrefixes: Guardrail = {
  holds: "Where tokens are drafted, prefixes are not cached: the drafting layer's part of a cache is not kept.",
  verbs: ["run", "eval"],
  keys: ["vllm.enable_prefix_caching", "vllm.mtp_num_speculative_tokens", "engine.kind"],
  check({ engine, vllm }) {
    const { mtp_num_speculative_tokens: drafted, enable_prefix_caching: cached } = vllm;
    if (engine.kind !== "vllm" || drafted === 0 || !cached) return null;
    const message = `vllm.enable_prefix_caching must be false with vllm.mtp_num_speculative_tokens ${drafted}`;
    return mendedBy("vllm.enable_prefix_caching", false, `${message}: a cached prefix lacks what drafting needs`);
  },
};

export const embeddedCache: Guardrail = {
  holds: "Only the embedded engine's cache is sized by the recipe.",
  severity: "warning",
  verbs: ["run", "eval"],
  keys: ["engine.cache_tokens", "engine.kind"],
  check({ engine }) {
    if (engine.kind === "embedded" || engine.cache_tokens === null) return null;
    const message = "engine.cache_tokens is the embedded engine's; vLLM fills vllm.gpu_memory_utilization";
    return mendedBy("engine.cache_tokens", null, message);
  },
};

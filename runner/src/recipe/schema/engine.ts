import { z } from "zod";
import { key, plannedKey, positiveInteger, section } from "./key.ts";

export const engine = section("The engines that sample.", {
  kind: plannedKey(z.enum(["embedded", "vllm"]), "embedded", {
    description: "What serves the policy: the embedded sampler, or vLLM.",
  }),
  count: key(positiveInteger, 1, { description: "Engine processes.", unit: "engines", metrics: ["sync_seconds"] }),
  dtype: key(z.enum(["float32", "bf16"]), "float32", {
    description:
      "What matmuls, attention and the key/value cache are in. bf16 halves the memory and, where the processor has " +
      "its instructions, is faster; the trainer's log-probabilities then differ by more.",
    metrics: ["logprob_gap_mean", "logprob_gap_max"],
  }),
  max_num_seqs: key(positiveInteger, 256, {
    description: "Sequences decoded at once by one engine.",
    unit: "sequences",
  }),
  page_size: key(positiveInteger, 16, {
    description: "Tokens that a page of the key/value cache holds.",
    unit: "tokens",
  }),
  cache_tokens: key(positiveInteger.nullable(), null, {
    description: "Tokens that the key/value cache holds; null is room for max_num_seqs sequences of data.max_len.",
    unit: "tokens",
  }),
});

import { z } from "zod";
import { key, optionalKey, positiveInteger, positiveNumber, section } from "./key.ts";

const address = z.string().regex(/^https?:\/\/[^/\s]+$/);

export const engine = section("The engines that sample.", {
  kind: key(z.enum(["embedded", "vllm"]), "embedded", "What serves the policy: the embedded sampler, or vLLM."),
  count: key(positiveInteger, 1, "Engine processes.", { unit: "engines", metrics: ["sync_seconds"] }),
  urls: key(z.array(address), [], "Running engines to attach to, in place of processes of the run's own."),
  start_timeout: key(positiveNumber, 600, "Deadline of an engine's start, loading included.", { unit: "seconds" }),
  sync_timeout: key(positiveNumber, 120, "Deadline of one attempt to bring engines to new weights.", {
    unit: "seconds",
    metrics: ["sync_seconds"],
  }),
  dtype: key(z.enum(["float32", "bf16"]), "float32", "What the engine computes in; bf16 halves its memory.", {
    metrics: ["logprob_gap_mean", "logprob_gap_max"],
  }),
  max_num_seqs: key(positiveInteger, 256, "Sequences decoded at once by one engine.", { unit: "sequences" }),
  page_size: key(positiveInteger, 16, "Tokens that a page of the key/value cache holds.", { unit: "tokens" }),
  cache_tokens: optionalKey(positiveInteger, "Tokens that the cache holds; null is max_num_seqs of data.max_len.", {
    unit: "tokens",
  }),
});

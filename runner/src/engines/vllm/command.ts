import type { Recipe } from "../../recipe/index.ts";
import type { EngineCommand } from "../start.ts";

/** vLLM's own reports, and looks for models on the network, are off: nothing leaves the machine. */
const env = {
  VLLM_SERVER_DEV_MODE: "1", // the control routes
  VLLM_ENABLE_SCALE_OUT_ENDPOINTS: "1", // the token route, before there was a flag
  VLLM_NO_USAGE_STATS: "1",
  DO_NOT_TRACK: "1",
  HF_HUB_OFFLINE: "1",
};

/** `vllm serve` as a recipe has it. A training run's engines get their weights by the first sync, the drafter not. */
export function vllmCommand(recipe: Recipe, model: string, init: "weights" | "random"): EngineCommand {
  const { data, engine, run, train, vllm } = recipe;
  const drafted = vllm.mtp_num_speculative_tokens;
  const values = {
    "--served-model-name": "policy",
    "--dtype": engine.dtype === "bf16" ? "bfloat16" : "float32",
    "--seed": run.seed,
    "--max-model-len": data.max_len,
    "--max-num-seqs": engine.max_num_seqs,
    "--tensor-parallel-size": vllm.tensor_parallel_size,
    "--pipeline-parallel-size": vllm.pipeline_parallel_size,
    "--data-parallel-size": vllm.data_parallel_size,
    "--gpu-memory-utilization": vllm.gpu_memory_utilization,
    // Log-probabilities after temperature, and a distribution that the model's folder does not change.
    "--logprobs-mode": "processed_logprobs",
    "--generation-config": "vllm",
    // Of several servers one would abort its own requests alone.
    "--api-server-count": 1,
    ...(init === "random" && drafted === 0 && { "--load-format": "dummy" }),
    ...(vllm.sync_backend === "nccl" && { "--weight-transfer-config": JSON.stringify({ backend: "nccl" }) }),
    ...(vllm.attention_backend !== null && { "--attention-backend": vllm.attention_backend }),
    ...(drafted > 0 && { "--speculative-config": JSON.stringify({ method: "mtp", num_speculative_tokens: drafted }) }),
  };
  const switches = [
    vllm.enable_prefix_caching ? "--enable-prefix-caching" : "--no-enable-prefix-caching",
    ...(vllm.enable_expert_parallel ? ["--enable-expert-parallel"] : []),
    ...(train.routing_replay ? ["--enable-return-routed-experts"] : []),
    ...(vllm.enforce_eager ? ["--enforce-eager"] : []),
    "--disable-uvicorn-access-log",
  ];
  const flags = Object.entries(values).flatMap(([flag, value]) => [flag, String(value)]);
  const words = [...vllm.command, model, ...flags, ...switches, ...vllm.extra_args];
  return { words, env, newer: ["--enable-scale-out"] };
}

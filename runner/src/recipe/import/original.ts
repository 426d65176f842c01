import type { Verb } from "../guardrails/index.ts";

/** Flags of the Python original that are called something else here, some with other values. */
export const renamed: Record<string, [key: string, values?: Record<string, string>]> = {
  "actor.num_gpus_per_node": ["actor.devices_per_node"],
  "actor.optim": ["actor.optimizer", { adam: "adamw" }],
  "algo.dynamic_filtering_enable": ["algo.dynamic_filtering", { true: "refill" }],
  "data.dataset": ["data.prompt_dataset"],
  "data.dataset_probs": ["data.prompt_probs"],
  "data.tokenizer_chat_template": ["data.chat_template"],
  "eval.eval_at_start": ["eval.at_start"],
  "logger.wandb.run_name": ["run.name"],
  "rollout.num_runners": ["rollout.workers"],
  "rollout.vllm_generate_batch_size": ["rollout.max_in_flight"],
  "train.async_queue_size": ["train.max_staleness"],
  "train.force_on_policy": ["train.updates_per_batch", { true: "1" }],
  "train.force_sync_mode": ["train.max_staleness", { true: "0" }],
  "train.max_tokens_per_gpu": ["train.max_tokens_per_device"],
  "train.num_episodes": ["data.epochs"],
  "train.seed": ["run.seed"],
  "vllm.num_engines": ["engine.count"],
};

/** The name that a flag of sft has in RL, whose optimizer and model belong to the actor. */
export function asInRl(flag: string): string {
  if (flag === "train.max_epochs") return "train.num_episodes";
  return flag.replace(/^model\./, "actor.").replace(/^(?=optim$|adam\.|muon\.|lr_|min_lr_|max_norm$)/, "actor.");
}

/** Defaults of the original that are others here: a script that leaves them out means them. */
export const defaults: Record<Exclude<Verb, "eval">, Record<string, string>> = {
  run: {
    "actor.num_gpus_per_node": "8",
    "fsdp.param_dtype": "bf16",
    "rollout.batch_size": "1024",
    "rollout.n_samples_per_prompt": "1",
    "train.batch_size": "128",
    "algo.advantage.estimator": "reinforce",
    "algo.advantage.is_correction_level": "off",
    "algo.kl.estimator": "k1",
    "algo.kl.use_loss": "false",
    "ckpt.save_steps": "-1",
  },
  sft: {
    "fsdp.param_dtype": "bf16",
    "train.batch_size": "128",
    "actor.adam.lr": "5e-6",
    "train.num_episodes": "2",
    "ckpt.save_steps": "-1",
  },
};

/** Why flags have no counterpart, where something takes their place; the first pattern that fits says it. */
export const reasons: [flags: RegExp, why: string][] = [
  [/^train\.agent_path$/, "an agent is TypeScript here: write one and name it with train.agent_path"],
  [/^(fsdp\.(tp_size|pp_size|sequence_parallel)|critic\.(optim|muon|max_epochs))/, "not in this version"],
  [/micro_batch_size|dynamic_batch|rollout\.max_tokens_per_gpu/, "train.max_tokens_per_device fills microbatches"],
  [/^train\.max_epochs$/, "a batch is trained once: train.updates_per_batch cuts it into several steps"],
  [/^ckpt\.(load_enable|path)/, "molt-runner resume goes on from the run's directory"],
  [/^ckpt\./, "the run's directory keeps checkpoints, and export/ the model"],
  [/^logger\.wandb\.key$/, "W&B's package reads WANDB_API_KEY; logger.wandb.project turns it on"],
  [/partial_rollout/, "train.partial_rollout says what a sync does to running requests"],
  [/router_policy/, "a rollout stays with the engine that has its prefix"],
  [/^critic\.freeze_moe_router$/, "actor.freeze_moe_router holds of the critic too"],
  [/apply_chat_template/, "messages always go through the template"],
  [/filtering_range/, "a group counts when its rewards differ"],
  [/^eval\.eval_only/, "molt-runner eval does that"],
  [/^vllm\./, "vLLM's own options go into vllm.extra_args, as its command line writes them"],
];

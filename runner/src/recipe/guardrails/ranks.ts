import { count } from "../arithmetic.ts";
import type { Recipe } from "../schema.ts";
import type { Guardrail } from "./finding.ts";

const worldKeys = ["actor.num_nodes", "actor.devices_per_node"];

/** Ranks of the policy, and how they come about. */
function world({ actor }: Recipe): { ranks: number; sum: string } {
  const { num_nodes: nodes, devices_per_node: devices } = actor;
  const ranks = nodes * devices;
  return { ranks, sum: nodes === 1 ? count(ranks, "rank") : `${nodes} nodes x ${devices} devices = ${ranks} ranks` };
}

/** Case E1: a mesh that does not divide the world would leave ranks without a place. */
export const meshSize: Guardrail = {
  holds: "Experts and sequences are spread over a number of ranks that divides all ranks.",
  verbs: ["run", "sft", "eval"],
  keys: ["fsdp.ep_size", "fsdp.cp_size", ...worldKeys],
  check(recipe) {
    const { ranks, sum } = world(recipe);
    const divisors = Array.from({ length: ranks }, (_, i) => i + 1).filter((size) => ranks % size === 0);
    const sizes = [
      ["fsdp.ep_size", recipe.fsdp.ep_size],
      ["fsdp.cp_size", recipe.fsdp.cp_size],
    ] as const;
    return sizes.flatMap(([key, size]) => {
      if (ranks % size === 0) return [];
      const near = [divisors.findLast((d) => d < size), divisors.find((d) => d > size)].filter((d) => d !== undefined);
      const message = `${key} (${size}) must divide the ${sum}: try ${near.join(" or ")}`;
      return [{ message, keys: [key, ...worldKeys], settings: [{ key, value: near[0] }] }];
    });
  },
};

export const keptWeights: Guardrail = {
  holds: "A layer whose graph is kept for the backward pass keeps its weights too.",
  verbs: ["run", "sft"],
  keys: ["fsdp.reshard_after_forward", "actor.gradient_checkpoint"],
  check({ fsdp, actor }) {
    if (fsdp.reshard_after_forward !== true || actor.gradient_checkpoint !== "none") return null;
    const message = "actor.gradient_checkpoint none keeps gathered weights: fsdp.reshard_after_forward cannot be true";
    return {
      message: `${message}; leave it out, or take gradient_checkpoint selective`,
      settings: [
        { key: "fsdp.reshard_after_forward", value: null },
        { key: "actor.gradient_checkpoint", value: "selective" },
      ],
    };
  },
};

export const oneMachine: Guardrail = {
  holds: "Ranks on several nodes have a launcher that brings processes there.",
  verbs: ["run", "sft"],
  keys: ["actor.num_nodes", "launcher.kind"],
  check({ actor, launcher }) {
    if (actor.num_nodes === 1 || launcher.kind !== "local") return null;
    return {
      message: `actor.num_nodes (${actor.num_nodes}) needs launcher.kind ray or slurm: local has one node`,
      settings: [
        { key: "launcher.kind", value: "slurm" },
        { key: "actor.num_nodes", value: 1 },
      ],
    };
  },
};

/** Case E1: the trainer never cuts a row, and stops at one above its cap. */
export const rowFits: Guardrail = {
  holds: "A microbatch has room for the longest row.",
  verbs: ["run", "sft"],
  keys: ["train.max_tokens_per_device", "data.max_len", "fsdp.cp_size"],
  check({ train, data, fsdp }) {
    const { max_tokens_per_device: cap } = train;
    const room = cap * fsdp.cp_size;
    if (data.max_len <= room) return null;
    const shared = fsdp.cp_size === 1 ? "" : ` x fsdp.cp_size ${fsdp.cp_size} = ${room}`;
    const least = Math.ceil(data.max_len / fsdp.cp_size);
    return {
      message:
        `train.max_tokens_per_device (${cap}${shared}) is below data.max_len (${data.max_len}), and a row is never ` +
        `cut: raise it to ${least}, or lower data.max_len to ${room}`,
      settings: [
        { key: "train.max_tokens_per_device", value: least },
        { key: "data.max_len", value: room },
      ],
    };
  },
};

/** Case E1: nothing is lost, since ranks without rows run along without weight, but they are paid for. */
export const idleRanks: Guardrail = {
  holds: "Each optimizer step has a row for every rank.",
  severity: "warning",
  verbs: ["run", "sft"],
  keys: [
    ...worldKeys,
    "fsdp.cp_size",
    "train.batch_size",
    "train.updates_per_batch",
    "rollout.batch_size",
    "rollout.n_samples_per_prompt",
  ],
  check(recipe, verb) {
    const { rollout, train, fsdp } = recipe;
    const { ranks, sum } = world(recipe);
    const rollouts = rollout.batch_size * rollout.n_samples_per_prompt;
    const rows = verb === "sft" ? train.batch_size : Math.floor(rollouts / train.updates_per_batch);
    const idle = ranks - rows * fsdp.cp_size;
    if (idle <= 0 || rows === 0) return null;
    const each = `${rollouts} rollouts / train.updates_per_batch ${train.updates_per_batch}`;
    const from = verb === "sft" ? "train.batch_size" : each;
    return `a step has ${count(rows, "row")} (${from}) for ${sum}: ${idle} would have nothing to do`;
  },
};

import { count } from "../arithmetic.ts";
import type { Finding, Verb } from "../guardrails/index.ts";
import { type Recipe, valueAt } from "../schema.ts";
import { deviceOf } from "./devices.ts";
import { layoutOf } from "./layout.ts";
import { type EngineMemory, engineMemory, type TrainerMemory, trainerMemory } from "./memory.ts";
import type { ModelShape } from "./shape.ts";
import { type Change, engineChanges, smallestChange, trainerChanges } from "./smallest-change.ts";
import { inBytes } from "./units.ts";

/**
 * What is wrong with a recipe for its model and devices: shapes that do not divide, memory that is not there, waits
 * that are too long. `tokenSeconds`: in which a sequence gets a token.
 */
export function findingsOf(recipe: Recipe, model: ModelShape, verb: Verb, tokenSeconds: number): Finding[] {
  const { fsdp, engine, vllm } = recipe;
  const tensor = engine.kind === "vllm" ? vllm.tensor_parallel_size : 1;
  const lacks =
    (who: string, memoryOf: typeof trainerMemory | typeof engineMemory): Lacks =>
    (changed) => {
      const layout = layoutOf(changed, model, verb);
      return lackOf(who, layout.device.name, memoryOf(changed, model, layout));
    };
  const ofTrainer = () => [
    ...divides("fsdp.ep_size", fsdp.ep_size, model.experts, "experts"),
    ...(model.experts > 0 ? adaptedExperts(recipe) : ofMixtures(recipe)),
    ...memory(recipe, trainerChanges(recipe, model), lacks("the trainer", trainerMemory)),
  ];
  const ofEngine = () => [
    ...divides("vllm.tensor_parallel_size", tensor, model.heads, "attention heads"),
    ...memory(recipe, engineChanges(recipe, model), lacks("an engine", engineMemory)),
    ...(verb === "run" ? syncByDisk(recipe, model) : []),
    ...replySeconds(recipe, tokenSeconds),
  ];
  return [...(verb === "eval" ? [] : ofTrainer()), ...(verb === "sft" ? [] : ofEngine())];
}

/** What a recipe needs more than there is, or null. */
type Lacks = (recipe: Recipe) => string | null;

function divides(key: string, size: number, whole: number, what: string): Finding[] {
  if (size === 1 || (whole > 0 && whole % size === 0)) return [];
  let value = Math.max(1, Math.min(whole, size));
  while (whole % value !== 0) value--;
  const message = `${key} (${size}) must divide the model's ${whole} ${what}: try ${value}`;
  const keys = [key, "actor.model_name_or_path"];
  return [{ severity: "error", rule: "modelShape", keys, message, settings: [{ key, value }] }];
}

/** What only a mixture has, set for a dense model. */
function ofMixtures({ actor, train }: Recipe): Finding[] {
  const wrong = [
    ["train.routing_replay", train.routing_replay, false],
    ["actor.aux_loss_coef", actor.aux_loss_coef > 0, 0],
    ["actor.freeze_moe_router", actor.freeze_moe_router, false],
  ] as const;
  return wrong.flatMap(([key, isSet, value]): Finding[] => {
    if (!isSet) return [];
    const message = `${key} is of mixtures of experts, and the model is dense: try ${value}`;
    const keys = [key, "actor.model_name_or_path"];
    return [{ severity: "error", rule: "modelShape", keys, message, settings: [{ key, value }] }];
  });
}

/** Bytes that take a disk seconds. */
const muchOnDisk = 8e9;

/** The folder of a sync is float32, whatever the engine computes in. */
function syncByDisk({ engine, run, vllm }: Recipe, { parameters }: ModelShape): Finding[] {
  const bytes = 4 * parameters.total;
  const isOnGpu = deviceOf(run.device).name !== "CPU";
  if (engine.kind !== "vllm" || vllm.sync_backend !== "directory" || !isOnGpu || bytes < muchOnDisk) return [];
  const sum = `writes ${inBytes(bytes)} to disk each time, which ${count(engine.count, "engine")} then read`;
  const message = `vllm.sync_backend directory ${sum}: take nccl, which broadcasts`;
  const keys = ["vllm.sync_backend", "engine.kind", "engine.count", "run.device", "actor.model_name_or_path"];
  const settings = [{ key: "vllm.sync_backend", value: "nccl" }];
  return [{ severity: "warning", rule: "syncByDisk", keys, message, settings }];
}

/** Of the longest reply, at the plan's pace, against the deadlines that would end it. */
function replySeconds({ data, rollout }: Recipe, tokenSeconds: number): Finding[] {
  const tokens = Math.min(data.max_len, rollout.max_new_tokens ?? Infinity);
  const seconds = Math.ceil(tokens * tokenSeconds);
  const short = (["turn_timeout", "timeout"] as const).filter((name) => rollout[name] < seconds);
  if (short.length === 0) return [];
  // Plans are off, and requests wait.
  const value = 60 * Math.ceil(seconds / 30);
  const named = short.map((name) => `rollout.${name} (${rollout[name]})`).join(" and ");
  const message = `a reply of ${tokens} tokens takes about ${seconds} s by the plan, above ${named}: try ${value}`;
  const keys = [...short.map((name) => `rollout.${name}`), "rollout.max_new_tokens", "data.max_len"];
  const settings = short.length === 1 ? [{ key: `rollout.${short[0]}`, value }] : undefined;
  return [{ severity: "warning", rule: "replySeconds", keys, message, settings }];
}

const attention = ["q_proj", "k_proj", "v_proj", "o_proj"];

function adaptedExperts({ actor: { lora } }: Recipe): Finding[] {
  const experts = lora.target_modules.filter((name) => !attention.includes(name));
  if (lora.rank === 0 || experts.length === 0) return [];
  const value = attention.filter((name) => lora.target_modules.some((target) => target === name));
  const [key, rest] = ["actor.lora.target_modules", value.length > 0 ? value : attention];
  const message = `${key} names ${experts.join(", ")}, which are experts here, and have no adapters: try [${rest}]`;
  const keys = [key, "actor.lora.rank", "actor.model_name_or_path"];
  return [{ severity: "error", rule: "modelShape", keys, message, settings: [{ key, value: rest }] }];
}

/** With the smallest change that fits. An error on a device that the recipe names; this machine may have swap. */
function memory(recipe: Recipe, changes: Change[], lacks: Lacks): Finding[] {
  const lack = lacks(recipe);
  if (lack === null) return [];
  const made = smallestChange(recipe, changes, (changed) => lacks(changed) === null);
  const named = made?.map(({ key, value }) => `${key} ${value} (not ${valueAt(recipe, key)})`).join(", ");
  const message = `${lack}: ${named ? `the smallest change that fits is ${named}` : "no layout of this model fits it"}`;
  const all = [...(made ?? []).map(({ key }) => key), ...changes.map(([key]) => key), "run.device"];
  const severity = recipe.run.device === "auto" ? "warning" : "error";
  // A setting that is enough alone is an editor's fix.
  const settings = made?.length === 1 ? made : undefined;
  return [{ severity, rule: "memory", keys: [...new Set(all)], message, settings }];
}

function lackOf(who: string, device: string, memory: TrainerMemory | EngineMemory): string | null {
  if ("host" in memory && memory.offloaded > memory.host)
    return `${who} needs ${inBytes(memory.offloaded)} of ${inBytes(memory.host)} of the host of each ${device}`;
  const { parts, total, available } = memory;
  if (total <= available) return null;
  const largest = Object.entries(parts).sort((a, b) => b[1] - a[1]);
  const named = largest.slice(0, 3).map(([part, size]) => `${part} ${inBytes(size)}`);
  return `${who} needs ${inBytes(total)} of ${inBytes(available)} on each ${device} (${named.join(", ")})`;
}

import type { Setting } from "../guardrails/index.ts";
import { type Recipe, valueAt } from "../schema.ts";
import { deviceOf } from "./devices.ts";
import type { ModelShape } from "./shape.ts";

/** A key, and values of it that need ever less memory. */
export type Change = [key: string, values: unknown[]];

const mostNodes = 256;

/**
 * Settings with which the recipe fits, and a microbatch holds a row: none can be left out or made less. Changes come
 * the cheapest first; null where all together are not enough.
 */
export function smallestChange(recipe: Recipe, changes: Change[], fits: (recipe: Recipe) => boolean): Setting[] | null {
  const settings = changes.map(([key]) => ({ key, value: valueAt(recipe, key) }));
  const isEnough = () => {
    const changed = settings.reduce(withSetting, recipe);
    return changed.train.max_tokens_per_device * changed.fsdp.cp_size >= changed.data.max_len && fits(changed);
  };
  for (const [i, [, values]] of changes.entries()) {
    for (const value of values) if (!isEnough()) settings[i]!.value = value;
  }
  if (!isEnough()) return null;
  // Each goes back as far as it may, the dearest first: twice, as rows that fit a microbatch need no context parallel.
  for (const setting of [...settings, ...settings].reverse()) {
    const values = changes.find(([key]) => key === setting.key)![1];
    for (const value of [valueAt(recipe, setting.key), ...values]) {
      setting.value = value;
      if (isEnough()) break;
    }
  }
  return settings.filter(({ key, value }) => value !== valueAt(recipe, key));
}

export function withSetting(recipe: Recipe, { key, value }: Setting): Recipe {
  const [section, name] = key.split(".") as [keyof Recipe, string];
  return { ...recipe, [section]: { ...recipe[section], [name]: value } };
}

/** What only costs time, then the host's memory, then devices. */
export function trainerChanges({ actor, data, fsdp, run, train }: Recipe, { experts }: ModelShape): Change[] {
  const { perNode, name } = deviceOf(run.device);
  const ranks = actor.num_nodes * actor.devices_per_node;
  const contexts = doubles(fsdp.cp_size, 16).filter((size) => ranks % size === 0);
  const expertSizes = doubles(fsdp.ep_size, experts).filter((size) => ranks % size === 0 && experts % size === 0);
  const leastTokens = Math.ceil(data.max_len / (contexts.at(-1) ?? fsdp.cp_size));
  const cheap: Change[] = [
    ["train.max_tokens_per_device", halves(train.max_tokens_per_device, leastTokens)],
    ["actor.gradient_checkpoint", after(["none", "selective", "full"], actor.gradient_checkpoint)],
    ["fsdp.ep_size", expertSizes],
    ["fsdp.cp_size", contexts],
  ];
  // Ranks on one CPU share its memory, and it is its own host.
  if (name === "CPU") return cheap;
  return [
    ...cheap,
    ["fsdp.offload", after(["none", "optimizer", "full"], fsdp.offload)],
    ["actor.devices_per_node", doubles(actor.devices_per_node, perNode)],
    ["actor.num_nodes", doubles(actor.num_nodes, mostNodes)],
  ];
}

export function engineChanges({ data, engine, vllm, run }: Recipe, { heads }: ModelShape): Change[] {
  const { cache_tokens: cache, max_num_seqs: sequences } = engine;
  const dtype: Change = ["engine.dtype", after(["float32", "bf16"], engine.dtype)];
  const most = 4 * deviceOf(run.device).perNode;
  const sizes = doubles(vllm.tensor_parallel_size, most).filter((size) => heads % size === 0);
  if (engine.kind === "vllm") return [dtype, ["vllm.tensor_parallel_size", sizes]];
  if (cache === null) return [["engine.max_num_seqs", halves(sequences, 1)], dtype];
  return [["engine.cache_tokens", halves(cache, data.max_len)], dtype];
}

function after(values: string[], value: string): string[] {
  return values.slice(values.indexOf(value) + 1);
}

function doubles(from: number, most: number): number[] {
  return from * 2 > most ? [] : [from * 2, ...doubles(from * 2, most)];
}

function halves(from: number, least: number): number[] {
  const half = Math.max(least, Math.floor(from / 2));
  return half >= from ? [] : [half, ...halves(half, least)];
}

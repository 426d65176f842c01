/** Tiny models of random weights, ragged rows, and what ranks made of them. */
import { readFileSync } from "node:fs";
import { readDecoder } from "../../src/data/decoder.ts";
import { readSafetensorsHeader } from "../../src/data/safetensors.ts";
import { uniform } from "../../src/engines/embedded/philox.ts";
import { sftLoss } from "../../src/trainer/fixtures/loss.ts";
import type { RankGroupOptions } from "../../src/trainer/handle.ts";
import type { StoredRow } from "../../src/trainer/packing.ts";
import type { ModelSpec } from "../../src/trainer/protocol.ts";
import { shardPath } from "../../src/trainer/shard-file.ts";
import type { Piece } from "../../src/trainer/shard-layout.ts";

export type Kind = "dense" | "mixture";
export type Init = RankGroupOptions["init"];

const layers = 3;
const numExperts = 8;
const expertsPerToken = 2;
const vocabulary = 96;

/** `width` times as wide as the smallest. The mixture's first layer is dense. */
function modelOf(kind: Kind, width: number): ModelSpec {
  const size = 32 * width;
  const common = {
    hidden_size: size,
    intermediate_size: 48 * width,
    num_hidden_layers: layers,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: size / 4,
    vocab_size: vocabulary,
    tie_word_embeddings: false,
  };
  const mixture = {
    num_experts: numExperts,
    num_experts_per_tok: expertsPerToken,
    moe_intermediate_size: 24 * width,
    mlp_only_layers: [0],
    norm_topk_prob: true,
  };
  const config = kind === "dense" ? { model_type: "qwen3" } : { model_type: "qwen3_moe", ...mixture };
  const { config: decoder, units } = readDecoder({ ...common, ...config }, "config.json");
  return { config: decoder, units, weights: null, seed: 7, dtype: "float32" };
}

/** Moments of the first order are the gradients themselves. */
export function initOf(kind: Kind, contextSize = 1, expertSize = 1, model: Partial<ModelSpec> = {}, width = 1): Init {
  return {
    mesh: { contextSize, expertSize },
    policy: { ...modelOf(kind, width), ...model },
    ref: null,
    optimizer: { betas: [0, 0.95], eps: 0.01, weightDecay: 0.1, maxNorm: 1e9 },
    critic: null,
    loss: { ...sftLoss, name: "ppo", entropyCoef: 0.01 },
    mixture: { balanceCoef: 0.05, replaysRoutes: true },
  };
}

export const ragged = [3, 17, 2, 40, 9, 25, 2, 11, 6, 33];

/** Some were sampled by known experts, some tokens by unknown ones, some rows by nobody knows which. */
export function rowsOf(lengths: readonly number[]): StoredRow[] {
  let draws = 0;
  const draw = () => uniform(11, draws++);
  const floats = (length: number, of: () => number) => Float32Array.from({ length }, of);
  return lengths.map((length, index) => {
    const row = {
      id: `row ${index}`,
      tokens: Int32Array.from({ length }, () => Math.floor(draw() * vocabulary)),
      mask: Uint8Array.from({ length }, (_, t) => (t > 0 && (t === 1 || draw() < 0.7) ? 1 : 0)),
      logprobs: floats(length, () => -2 - draw()),
      temperatures: floats(length, () => 1),
      advantages: floats(length, () => 2 * draw() - 1),
    };
    if (index % 3 === 2) return row;
    const routes = new Int16Array(length * layers * expertsPerToken);
    for (let at = 0; at < routes.length; at += expertsPerToken) {
      const first = Math.floor(draw() * numExperts);
      const second = (first + 1 + Math.floor(draw() * (numExperts - 1))) % numExperts;
      routes.set(draw() < 0.3 ? [-1, -1] : [first, second], at);
    }
    return { ...row, routes };
  });
}

/** Of each parameter, by the tables of all ranks' shards: weights, and gradients of the last step. */
export function readCheckpoint(directory: string, ranks: number) {
  const [weights, gradients] = [new Map<string, number[]>(), new Map<string, number[]>()];
  for (let rank = 0; rank < ranks; rank++) {
    const file = shardPath(directory, rank);
    const { metadata, entries } = readSafetensorsHeader(file);
    const bytes = readFileSync(file);
    for (const [values, name] of [
      [weights, "policy.weights"],
      [gradients, "policy.exp_avg"],
    ] as const) {
      const { offset } = entries.find((entry) => entry.name === name)!;
      for (const [parameter, start, count, at] of JSON.parse(metadata.table!) as Piece[]) {
        const whole = values.get(parameter) ?? [];
        for (let i = 0; i < count; i++) whole[start + i] = bytes.readFloatLE(offset + 4 * (at + i));
        values.set(parameter, whole);
      }
    }
  }
  return { weights, gradients };
}

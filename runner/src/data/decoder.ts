/** Reads a Hugging Face `config.json` into what the native core runs: numbers, and the units with their tensors. */
import type { DecoderConfig, ParameterDescription, ParameterInit, UnitDescription } from "molt-native";
import { usageError } from "../errors.ts";

export interface Decoder {
  /** The `model_type`. */
  family: string;
  config: DecoderConfig;
  units: UnitDescription[];
}

type Config = Record<string, unknown>;

/** What sets one family of decoders apart: a description, which the same code reads. */
interface Family {
  qkNorm: boolean;
  embed: string;
  /** Prefix of layer N's tensors; `{}` stands for N. */
  layerPrefix: string;
  /** Role → tensor, below the layer's prefix, in the unit's order. */
  layer: Record<string, string>;
  norm: string;
  head: string;
}

const families: Record<string, Family> = {
  qwen3: {
    qkNorm: true,
    embed: "model.embed_tokens.weight",
    layerPrefix: "model.layers.{}.",
    layer: {
      input_norm: "input_layernorm.weight",
      q: "self_attn.q_proj.weight",
      k: "self_attn.k_proj.weight",
      v: "self_attn.v_proj.weight",
      q_norm: "self_attn.q_norm.weight",
      k_norm: "self_attn.k_norm.weight",
      o: "self_attn.o_proj.weight",
      post_norm: "post_attention_layernorm.weight",
      gate: "mlp.gate_proj.weight",
      up: "mlp.up_proj.weight",
      down: "mlp.down_proj.weight",
    },
    norm: "model.norm.weight",
    head: "lm_head.weight",
  },
};

/** `file` is named in errors. Refuses what the native core would compute otherwise than the model's authors did. */
export function readDecoder(configJson: Config, file: string): Decoder {
  const family = String(configJson.model_type);
  const description = Object.hasOwn(families, family) ? families[family] : undefined;
  if (!description) {
    const supported = Object.keys(families).join(", ");
    throw usageError(`model_type is ${JSON.stringify(configJson.model_type)}; supported: ${supported}`, {
      position: { file },
      fix: "take a model of a supported family",
    });
  }
  refuseVariants(configJson, file);
  const count = (key: string) => positive(configJson, key, file, Number.isInteger);
  const config: DecoderConfig = {
    vocabSize: count("vocab_size"),
    hiddenSize: count("hidden_size"),
    intermediateSize: count("intermediate_size"),
    numLayers: count("num_hidden_layers"),
    numHeads: count("num_attention_heads"),
    numKvHeads: count("num_key_value_heads"),
    headDim: count("head_dim"),
    ropeTheta: ropeTheta(configJson, file),
    rmsNormEps: positive({ rms_norm_eps: 1e-6, ...configJson }, "rms_norm_eps", file),
    tieWordEmbeddings: configJson.tie_word_embeddings === true,
    qkNorm: description.qkNorm,
  };
  if (config.numHeads % config.numKvHeads !== 0 || config.headDim % 2 !== 0) {
    const { numHeads, numKvHeads, headDim } = config;
    const found = `num_attention_heads ${numHeads}, num_key_value_heads ${numKvHeads}, head_dim ${headDim}`;
    throw usageError(`heads do not fit: ${found}`, {
      position: { file },
      fix: "make the query heads a multiple of the key/value heads, and head_dim even",
    });
  }
  return { family, config, units: describeUnits(config, description) };
}

function positive(config: Config, key: string, file: string, holds: (value: number) => boolean = Number.isFinite) {
  const value = config[key];
  if (typeof value === "number" && holds(value) && value > 0) return value;
  const found = value === undefined ? "is missing" : `is ${JSON.stringify(value)}`;
  const wanted = holds === Number.isInteger ? "a positive integer" : "a positive number";
  throw usageError(`${key} ${found}; it must be ${wanted}`, { position: { file } });
}

/** transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 `rope_parameters`. */
function ropeTheta(config: Config, file: string): number {
  const parameters = (config.rope_parameters ?? config.rope_scaling ?? {}) as Config;
  const kind = parameters.rope_type ?? parameters.type ?? "default";
  if (kind !== "default")
    unsupported(`rope scaling of kind ${JSON.stringify(kind)}`, "only default rotary embeddings", file);
  return positive({ rope_theta: 10000, ...config, ...parameters }, "rope_theta", file);
}

function refuseVariants(config: Config, file: string): void {
  const act = config.hidden_act ?? "silu";
  if (act !== "silu") unsupported(`hidden_act is ${JSON.stringify(act)}`, "only silu", file);
  if (config.attention_bias === true) unsupported("attention_bias is true", "only attention without biases", file);
  const kinds = Array.isArray(config.layer_types) ? config.layer_types : [];
  const sliding =
    kinds.length > 0 ? kinds.some((kind) => kind !== "full_attention") : config.use_sliding_window === true;
  if (sliding) unsupported("some layers use a sliding window", "only full attention", file);
}

function unsupported(what: string, instead: string, file: string): never {
  throw usageError(`${what}, which is not supported: ${instead}`, { position: { file }, fix: "take another model" });
}

function describeUnits(config: DecoderConfig, family: Family): UnitDescription[] {
  const { vocabSize: V, hiddenSize: H, numLayers } = config;
  // A tied embedding is also the head, and takes the head's scale: its logits would be too sharp at first otherwise.
  const headStd = 0.5 / Math.sqrt(H);
  const embedStd = config.tieWordEmbeddings ? headStd : 0.5;
  const head: ParameterDescription[] = [norm("norm", family.norm, H)];
  if (!config.tieWordEmbeddings) head.push(matrix("head", family.head, [V, H], headStd));
  const layers = Array.from({ length: numLayers }, (_, index) => describeLayer(config, family, index));
  return [
    { kind: "embedding", parameters: [matrix("embed", family.embed, [V, H], embedStd)] },
    ...layers,
    { kind: "head", parameters: head },
  ];
}

function describeLayer(config: DecoderConfig, family: Family, index: number): UnitDescription {
  const { hiddenSize: H, intermediateSize: F, headDim: D, numHeads, numKvHeads, numLayers } = config;
  const shapes: Record<string, number[]> = {
    input_norm: [H],
    q: [numHeads * D, H],
    k: [numKvHeads * D, H],
    v: [numKvHeads * D, H],
    q_norm: [D],
    k_norm: [D],
    o: [H, numHeads * D],
    post_norm: [H],
    gate: [F, H],
    up: [F, H],
    down: [H, F],
  };
  const prefix = family.layerPrefix.replace("{}", String(index));
  const parameters = Object.entries(family.layer).map(([role, suffix]) => {
    const shape = shapes[role]!;
    if (shape.length === 1) return norm(role, prefix + suffix, shape[0]!);
    // What adds to the residual stream starts smaller, so that the stream's variance does not grow with depth.
    const residual = role === "o" || role === "down" ? 1 / Math.sqrt(2 * numLayers) : 1;
    return matrix(role, prefix + suffix, shape, residual / Math.sqrt(shape[1]!));
  });
  return { kind: "layer", parameters };
}

function norm(role: string, name: string, size: number): ParameterDescription {
  return { role, name, shape: [size], init: { kind: "ones" }, decay: false };
}

function matrix(role: string, name: string, shape: number[], std: number): ParameterDescription {
  const init: ParameterInit = { kind: "normal", std };
  return { role, name, shape, init, decay: true };
}

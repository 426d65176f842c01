/** Reads a Hugging Face `config.json` into what the native core runs: numbers, and the units with their tensors. */
import type { DecoderConfig, ParameterDescription, ParameterInit, UnitDescription } from "molt-native";
import { usageError } from "../errors.ts";
import { type Config, positive, unsupported } from "./config-json.ts";
import { readRope } from "./rope.ts";

export interface Decoder {
  /** The `model_type`. */
  family: string;
  config: DecoderConfig;
  units: UnitDescription[];
}

/** What sets one family of decoders apart; the same code reads them all. */
interface Family {
  qkNorm: boolean;
  /** Roles of the projections that have a bias. */
  biases: (config: Config) => string[];
  /** Where the file has none; else the hidden size over the heads. */
  headDim?: number;
  slidingWindows: boolean;
}

const attention = ["q", "k", "v", "o"];
const mlp = ["gate", "up", "down"];

const families: Record<string, Family> = {
  llama: {
    qkNorm: false,
    biases: (config) => [...(config.attention_bias ? attention : []), ...(config.mlp_bias ? mlp : [])],
    slidingWindows: false,
  },
  qwen2: { qkNorm: false, biases: () => ["q", "k", "v"], slidingWindows: true },
  qwen3: {
    qkNorm: true,
    biases: (config) => (config.attention_bias ? attention : []),
    headDim: 128,
    slidingWindows: true,
  },
};

/** Role → module below `model.layers.N.`, in the unit's order. */
const layerModules = {
  input_norm: "input_layernorm",
  q: "self_attn.q_proj",
  k: "self_attn.k_proj",
  v: "self_attn.v_proj",
  q_norm: "self_attn.q_norm",
  k_norm: "self_attn.k_norm",
  o: "self_attn.o_proj",
  post_norm: "post_attention_layernorm",
  gate: "mlp.gate_proj",
  up: "mlp.up_proj",
  down: "mlp.down_proj",
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
  const act = configJson.hidden_act ?? "silu";
  if (act !== "silu") unsupported(`hidden_act is ${JSON.stringify(act)}`, "only silu", file);
  const count = (key: string, otherwise?: number) =>
    positive({ ...configJson, [key]: configJson[key] ?? otherwise }, key, file, Number.isInteger);
  const [hiddenSize, numHeads, numLayers] = ["hidden_size", "num_attention_heads", "num_hidden_layers"].map((key) =>
    count(key),
  ) as [number, number, number];
  const headDim = count("head_dim", description.headDim ?? Math.floor(hiddenSize / numHeads));
  const config: DecoderConfig = {
    vocabSize: count("vocab_size"),
    hiddenSize,
    intermediateSize: count("intermediate_size"),
    numLayers,
    numHeads,
    numKvHeads: count("num_key_value_heads", numHeads),
    headDim,
    ...readRope(configJson, headDim, file),
    windows: description.slidingWindows ? readWindows(configJson, numLayers, file) : Array(numLayers).fill(0),
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
  return { family, config, units: describeUnits(config, description.biases(configJson)) };
}

/** The window of each layer, 0 where it attends to everything. The last layers have it, where none are named. */
function readWindows(config: Config, numLayers: number, file: string): number[] {
  const last = typeof config.max_window_layers === "number" ? config.max_window_layers : 28;
  const byPlace = Array.from({ length: numLayers }, (_, i) =>
    config.use_sliding_window === true && config.sliding_window !== null && i >= last
      ? "sliding_attention"
      : "full_attention",
  );
  const kinds: unknown[] = Array.isArray(config.layer_types) ? config.layer_types : byPlace;
  if (kinds.length !== numLayers)
    throw usageError(`layer_types names ${kinds.length} layers of ${numLayers}`, { position: { file } });
  const other = kinds.find((kind) => kind !== "sliding_attention" && kind !== "full_attention");
  if (other !== undefined) unsupported(`a layer is of type ${JSON.stringify(other)}`, "only full or sliding", file);
  if (!kinds.includes("sliding_attention")) return Array(numLayers).fill(0);
  if (config.use_sliding_window !== true)
    throw usageError("layer_types names sliding_attention, but use_sliding_window is not true", { position: { file } });
  const window = positive({ sliding_window: 4096, ...config }, "sliding_window", file, Number.isInteger);
  return kinds.map((kind) => (kind === "sliding_attention" ? window : 0));
}

function describeUnits(config: DecoderConfig, biases: string[]): UnitDescription[] {
  const { vocabSize: V, hiddenSize: H, numLayers } = config;
  // A tied embedding is also the head, and takes the head's scale: its logits would be too sharp at first otherwise.
  const headStd = 0.5 / Math.sqrt(H);
  const embedStd = config.tieWordEmbeddings ? headStd : 0.5;
  const head: ParameterDescription[] = [norm("norm", "model.norm.weight", H)];
  if (!config.tieWordEmbeddings) head.push(matrix("head", "lm_head.weight", [V, H], headStd));
  const layers = Array.from({ length: numLayers }, (_, index) => describeLayer(config, biases, index));
  return [
    { kind: "embedding", parameters: [matrix("embed", "model.embed_tokens.weight", [V, H], embedStd)] },
    ...layers,
    { kind: "head", parameters: head },
  ];
}

function describeLayer(config: DecoderConfig, biases: string[], index: number): UnitDescription {
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
  const parameters = Object.entries(layerModules).flatMap(([role, module]): ParameterDescription[] => {
    if (!config.qkNorm && (role === "q_norm" || role === "k_norm")) return [];
    const name = `model.layers.${index}.${module}`;
    const shape = shapes[role]!;
    if (shape.length === 1) return [norm(role, `${name}.weight`, shape[0]!)];
    // What adds to the residual stream starts smaller, so that the stream's variance does not grow with depth.
    const residual = role === "o" || role === "down" ? 1 / Math.sqrt(2 * numLayers) : 1;
    const weight = matrix(role, `${name}.weight`, shape, residual / Math.sqrt(shape[1]!));
    return biases.includes(role) ? [weight, bias(`${role}_bias`, `${name}.bias`, shape[0]!)] : [weight];
  });
  return { kind: "layer", parameters };
}

/** Starts at 0. */
function bias(role: string, name: string, size: number): ParameterDescription {
  return { role, name, shape: [size], init: { kind: "normal", std: 0 }, decay: false };
}

function norm(role: string, name: string, size: number): ParameterDescription {
  return { role, name, shape: [size], init: { kind: "ones" }, decay: false };
}

function matrix(role: string, name: string, shape: number[], std: number): ParameterDescription {
  const init: ParameterInit = { kind: "normal", std };
  return { role, name, shape, init, decay: true };
}

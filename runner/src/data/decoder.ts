/** A `config.json` as what the native core runs: numbers, and units with their tensors. */
import type { DecoderConfig, ParameterDescription, ParameterInit, UnitDescription } from "molt-native";
import { fileError } from "../errors.ts";
import { type Config, positive, unsupported } from "./config-json.ts";
import { readRope } from "./rope.ts";

export interface Decoder {
  /** `model_type`. */
  family: string;
  config: DecoderConfig;
  units: UnitDescription[];
}

interface Family {
  qkNorm: boolean;
  /** Projections that have a bias. */
  biases: (config: Config) => string[];
  /** For files without one; else the hidden size over the heads. */
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

/** `file` is named in errors. Refuses what the native core would compute otherwise than the authors did. */
export function readDecoder(configJson: Config, file: string): Decoder {
  const family = String(configJson.model_type);
  if (!Object.hasOwn(families, family)) {
    const supported = Object.keys(families).join(", ");
    const what = `model_type is ${JSON.stringify(configJson.model_type)}; supported: ${supported}`;
    throw fileError(file, what, "take a model of a supported family");
  }
  const { qkNorm, biases, headDim: ownHeadDim, slidingWindows } = families[family]!;
  const act = configJson.hidden_act ?? "silu";
  if (act !== "silu") unsupported(`hidden_act is ${JSON.stringify(act)}`, "only silu", file);
  const count = (key: string, otherwise?: number) =>
    positive({ ...configJson, [key]: configJson[key] ?? otherwise }, key, file, Number.isInteger);
  const [hiddenSize, numLayers] = [count("hidden_size"), count("num_hidden_layers")];
  const numHeads = count("num_attention_heads");
  const numKvHeads = count("num_key_value_heads", numHeads);
  const headDim = count("head_dim", ownHeadDim ?? Math.floor(hiddenSize / numHeads));
  if (numHeads % numKvHeads !== 0 || headDim % 2 !== 0) {
    const found = `num_attention_heads ${numHeads}, num_key_value_heads ${numKvHeads}, head_dim ${headDim}`;
    const fix = "make the query heads a multiple of the key/value heads, and head_dim even";
    throw fileError(file, `heads do not fit: ${found}`, fix);
  }
  const config: DecoderConfig = {
    vocabSize: count("vocab_size"),
    hiddenSize,
    intermediateSize: count("intermediate_size"),
    numLayers,
    numHeads,
    numKvHeads,
    headDim,
    ...readRope(configJson, headDim, file),
    windows: slidingWindows ? readWindows(configJson, numLayers, file) : Array(numLayers).fill(0),
    rmsNormEps: positive({ rms_norm_eps: 1e-6, ...configJson }, "rms_norm_eps", file),
    tieWordEmbeddings: configJson.tie_word_embeddings === true,
    qkNorm,
  };
  return { family, config, units: describeUnits(config, biases(configJson)) };
}

/** A decoder as a critic: small random values in place of the language model's head. */
export function asCritic({ config, units }: Decoder): Pick<Decoder, "config" | "units"> {
  const { hiddenSize: H } = config;
  const norm = units.at(-1)!.parameters.filter(({ role }) => role === "norm");
  const head = [...norm, describe("value", "score.weight", [1, H], 1 / (H + 1))];
  return {
    config: { ...config, tieWordEmbeddings: false },
    units: [...units.slice(0, -1), { kind: "head", parameters: head }],
  };
}

/** Of each layer, 0 for full attention. Where no layers are named, the last have it. */
function readWindows(config: Config, numLayers: number, file: string): number[] {
  const { use_sliding_window: uses, sliding_window: size, max_window_layers: last = 28, layer_types: named } = config;
  const hasWindow = (layer: number) => uses === true && size !== null && layer >= Number(last);
  const byPlace = (_: unknown, layer: number) => (hasWindow(layer) ? "sliding_attention" : "full_attention");
  const kinds: unknown[] = Array.isArray(named) ? named : Array.from({ length: numLayers }, byPlace);
  if (kinds.length !== numLayers) throw fileError(file, `layer_types names ${kinds.length} layers of ${numLayers}`);
  const other = kinds.find((kind) => kind !== "sliding_attention" && kind !== "full_attention");
  if (other !== undefined) unsupported(`a layer is of type ${JSON.stringify(other)}`, "only full or sliding", file);
  if (!kinds.includes("sliding_attention")) return Array(numLayers).fill(0);
  if (uses !== true) throw fileError(file, "layer_types names sliding_attention, but use_sliding_window is not true");
  const window = positive({ sliding_window: 4096, ...config }, "sliding_window", file, Number.isInteger);
  return kinds.map((kind) => (kind === "sliding_attention" ? window : 0));
}

function describeUnits(config: DecoderConfig, biases: string[]): UnitDescription[] {
  const { vocabSize: V, hiddenSize: H, numLayers } = config;
  // A tied embedding takes the head's scale: its logits would be too sharp at first.
  const headStd = 0.5 / Math.sqrt(H);
  const embedStd = config.tieWordEmbeddings ? headStd : 0.5;
  const head = [describe("norm", "model.norm.weight", [H])];
  if (!config.tieWordEmbeddings) head.push(describe("head", "lm_head.weight", [V, H], headStd));
  const layers = Array.from({ length: numLayers }, (_, index) => describeLayer(config, biases, index));
  return [
    { kind: "embedding", parameters: [describe("embed", "model.embed_tokens.weight", [V, H], embedStd)] },
    ...layers,
    { kind: "head", parameters: head },
  ];
}

function describeLayer(config: DecoderConfig, biases: string[], index: number): UnitDescription {
  const { hiddenSize: H, intermediateSize: F, headDim: D, numHeads, numKvHeads, numLayers, qkNorm } = config;
  // What adds to the residual stream starts smaller, so that its variance does not grow with depth.
  const residual = 1 / Math.sqrt(2 * numLayers);
  const layer = `model.layers.${index}`;
  const norm = (role: string, module: string, size: number) => describe(role, `${layer}.${module}.weight`, [size]);
  const matrix = (role: string, module: string, outputs: number, inputs: number, scale = 1) => {
    const weight = describe(role, `${layer}.${module}.weight`, [outputs, inputs], scale / Math.sqrt(inputs));
    const bias = describe(`${role}_bias`, `${layer}.${module}.bias`, [outputs], 0);
    return biases.includes(role) ? [weight, bias] : [weight];
  };
  const parameters = [
    norm("input_norm", "input_layernorm", H),
    matrix("q", "self_attn.q_proj", numHeads * D, H),
    matrix("k", "self_attn.k_proj", numKvHeads * D, H),
    matrix("v", "self_attn.v_proj", numKvHeads * D, H),
    qkNorm ? [norm("q_norm", "self_attn.q_norm", D), norm("k_norm", "self_attn.k_norm", D)] : [],
    matrix("o", "self_attn.o_proj", H, numHeads * D, residual),
    norm("post_norm", "post_attention_layernorm", H),
    matrix("gate", "mlp.gate_proj", F, H),
    matrix("up", "mlp.up_proj", F, H),
    matrix("down", "mlp.down_proj", H, F, residual),
  ];
  return { kind: "layer", parameters: parameters.flat() };
}

/** Normal with deviation `std`, or ones. Only matrices decay. */
function describe(role: string, name: string, shape: number[], std?: number): ParameterDescription {
  const init: ParameterInit = std === undefined ? { kind: "ones" } : { kind: "normal", std };
  return { role, name, shape, init, decay: shape.length > 1 };
}

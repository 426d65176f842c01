/** A `config.json` as what the native core runs: numbers, and units with their tensors. */
import type { DecoderConfig, MoeConfig, ParameterDescription, ParameterInit, UnitDescription } from "molt-native";
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
  /** Of each layer, 0 for full attention. */
  windows: (config: Config, numLayers: number, file: string) => number[];
  mixture?: Mixture;
}

/** Names of a mixture's layers. */
interface Mixture {
  module: string;
  /** Of an expert's `gate`, `up` and `down`. */
  projections: [string, string, string];
  /** The config's key of an expert's width. */
  size: string;
  /** Where the family always does. */
  normTopkProb?: true;
}

const attention = ["q", "k", "v", "o"];
const mlp = ["gate", "up", "down"];

const families: Record<string, Family> = {
  llama: {
    qkNorm: false,
    biases: (config) => [...(config.attention_bias ? attention : []), ...(config.mlp_bias ? mlp : [])],
    windows: (_, numLayers) => Array(numLayers).fill(0),
  },
  mixtral: {
    qkNorm: false,
    biases: () => [],
    windows: readWindow,
    mixture: {
      module: "block_sparse_moe",
      projections: ["w1", "w3", "w2"],
      size: "intermediate_size",
      normTopkProb: true,
    },
  },
  qwen2: { qkNorm: false, biases: () => ["q", "k", "v"], windows: readWindows },
  qwen3: {
    qkNorm: true,
    biases: (config) => (config.attention_bias ? attention : []),
    headDim: 128,
    windows: readWindows,
  },
  qwen3_moe: {
    qkNorm: true,
    biases: (config) => (config.attention_bias ? attention : []),
    windows: (config, ...rest) =>
      readWindow(config.use_sliding_window === true ? { sliding_window: 4096, ...config } : {}, ...rest),
    mixture: { module: "mlp", projections: ["gate_proj", "up_proj", "down_proj"], size: "moe_intermediate_size" },
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
  const { qkNorm, biases, headDim: ownHeadDim, windows, mixture } = families[family]!;
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
    windows: windows(configJson, numLayers, file),
    rmsNormEps: positive({ rms_norm_eps: 1e-6, ...configJson }, "rms_norm_eps", file),
    tieWordEmbeddings: configJson.tie_word_embeddings === true,
    qkNorm,
    ...(mixture && { moe: readMoe(configJson, mixture, numLayers, file) }),
  };
  return { family, config, units: describeUnits(config, biases(configJson), mixture) };
}

/** Tensors of a checkpoint, in the order in which the native core saves and sends them. */
export function parametersOf(units: UnitDescription[]): ParameterDescription[] {
  return units.flatMap(({ parameters, experts = [] }) => [...parameters, ...experts]);
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

/** transformers 5 writes `num_local_experts` for either family. */
function readMoe(config: Config, { size, normTopkProb }: Mixture, numLayers: number, file: string): MoeConfig {
  const count = (key: string) => positive(config, key, file, Number.isInteger);
  const key = config.num_experts === undefined ? "num_local_experts" : "num_experts";
  const [numExperts, expertsPerToken] = [count(key), count("num_experts_per_tok")];
  if (expertsPerToken > numExperts) {
    const what = `num_experts_per_tok is ${expertsPerToken}, ${key} only ${numExperts}`;
    throw fileError(file, what, `lower num_experts_per_tok to ${numExperts} at most`);
  }
  const { mlp_only_layers: dense = [], norm_topk_prob: norm = false } = config;
  if (!Array.isArray(dense) || !dense.every((layer) => Number.isInteger(layer) && layer >= 0 && layer < numLayers)) {
    const what = `mlp_only_layers is ${JSON.stringify(dense)}; the model has layers 0 to ${numLayers - 1}`;
    throw fileError(file, what, "list the indices of the layers without experts");
  }
  if (typeof norm !== "boolean") {
    throw fileError(file, `norm_topk_prob is ${JSON.stringify(norm)}`, "make it true or false");
  }
  const step = positive({ decoder_sparse_step: 1, ...config }, "decoder_sparse_step", file, Number.isInteger);
  return {
    numExperts,
    expertsPerToken,
    expertIntermediateSize: count(size),
    normTopkProb: normTopkProb ?? norm,
    layers: Array.from({ length: numLayers }, (_, i) => ((i + 1) % step === 0 && !dense.includes(i) ? 1 : 0)),
  };
}

/** One for all layers. */
function readWindow(config: Config, numLayers: number, file: string): number[] {
  const window = config.sliding_window ?? null;
  return Array(numLayers).fill(window === null ? 0 : positive(config, "sliding_window", file, Number.isInteger));
}

/** Where no layers are named, the last have it. */
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

type DescribeMatrix = (
  role: string,
  module: string,
  outputs: number,
  inputs: number,
  scale?: number,
) => ParameterDescription[];

function describeUnits(config: DecoderConfig, biases: string[], mixture?: Mixture): UnitDescription[] {
  const { vocabSize: V, hiddenSize: H, numLayers } = config;
  // A tied embedding takes the head's scale: its logits would be too sharp at first.
  const headStd = 0.5 / Math.sqrt(H);
  const embedStd = config.tieWordEmbeddings ? headStd : 0.5;
  const head = [describe("norm", "model.norm.weight", [H])];
  if (!config.tieWordEmbeddings) head.push(describe("head", "lm_head.weight", [V, H], headStd));
  const layers = Array.from({ length: numLayers }, (_, index) => describeLayer(config, biases, index, mixture));
  return [
    { kind: "embedding", parameters: [describe("embed", "model.embed_tokens.weight", [V, H], embedStd)] },
    ...layers,
    { kind: "head", parameters: head },
  ];
}

function describeLayer(
  config: DecoderConfig,
  biases: string[],
  index: number,
  mixture: Mixture | undefined,
): UnitDescription {
  const { hiddenSize: H, intermediateSize: F, headDim: D, numHeads, numKvHeads, numLayers, qkNorm, moe } = config;
  // What adds to the residual stream starts smaller, so that its variance does not grow with depth.
  const residual = 1 / Math.sqrt(2 * numLayers);
  const layer = `model.layers.${index}`;
  const norm = (role: string, module: string, size: number) => describe(role, `${layer}.${module}.weight`, [size]);
  const matrix: DescribeMatrix = (role, module, outputs, inputs, scale = 1) => {
    const weight = describe(role, `${layer}.${module}.weight`, [outputs, inputs], scale / Math.sqrt(inputs));
    const bias = describe(`${role}_bias`, `${layer}.${module}.bias`, [outputs], 0);
    return biases.includes(role) ? [weight, bias] : [weight];
  };
  const attends = [
    norm("input_norm", "input_layernorm", H),
    matrix("q", "self_attn.q_proj", numHeads * D, H),
    matrix("k", "self_attn.k_proj", numKvHeads * D, H),
    matrix("v", "self_attn.v_proj", numKvHeads * D, H),
    qkNorm ? [norm("q_norm", "self_attn.q_norm", D), norm("k_norm", "self_attn.k_norm", D)] : [],
    matrix("o", "self_attn.o_proj", H, numHeads * D, residual),
    norm("post_norm", "post_attention_layernorm", H),
  ];
  if (mixture && moe!.layers[index]) {
    const { numExperts } = moe!;
    const parameters = [attends, matrix("router", `${mixture.module}.gate`, numExperts, H)].flat(2);
    return { kind: "layer", parameters, experts: describeExperts(config, mixture, matrix, residual) };
  }
  const mlp = [
    matrix("gate", "mlp.gate_proj", F, H),
    matrix("up", "mlp.up_proj", F, H),
    matrix("down", "mlp.down_proj", H, F, residual),
  ];
  return { kind: "layer", parameters: [attends, mlp].flat(2) };
}

/** In the order in which they are multiplied: gate and up of each, then down of each. */
function describeExperts(
  { hiddenSize: H, moe }: DecoderConfig,
  { module, projections: [gate, up, down] }: Mixture,
  matrix: DescribeMatrix,
  residual: number,
): ParameterDescription[] {
  const { numExperts, expertIntermediateSize: I } = moe!;
  const ofEach = (describeOne: (name: string) => ParameterDescription[][]) =>
    Array.from({ length: numExperts }, (_, expert) =>
      describeOne(`${module}.experts.${expert}`)
        .flat()
        .map((parameter) => ({ ...parameter, expert })),
    ).flat();
  return [
    ...ofEach((name) => [matrix("expert_gate", `${name}.${gate}`, I, H), matrix("expert_up", `${name}.${up}`, I, H)]),
    ...ofEach((name) => [matrix("expert_down", `${name}.${down}`, H, I, residual)]),
  ];
}

/** Normal with deviation `std`, or ones. Only matrices decay. */
function describe(role: string, name: string, shape: number[], std?: number): ParameterDescription {
  const init: ParameterInit = std === undefined ? { kind: "ones" } : { kind: "normal", std };
  return { role, name, shape, init, decay: shape.length > 1 };
}

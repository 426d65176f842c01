/**
 * Rotary embeddings of every kind as plain numbers: the native core knows no kinds. Source: `modeling_rope_utils.py` of
 * transformers 5.24.
 */
import { type Config, positive, unsupported } from "./config-json.ts";

export interface Rope {
  /** `[headDim / 2]` float32 radians a position. */
  inverseFrequencies: number[];
  ropeScale: number;
}

/** `frequencies` as by default, pair i at index i. `number` reads a parameter that must be there. */
interface Base {
  parameters: Config;
  theta: number;
  frequencies: number[];
  number: (key: string) => number;
}

const kinds: Record<string, (base: Base) => Rope> = {
  default: ({ frequencies }) => ({ inverseFrequencies: frequencies, ropeScale: 1 }),
  linear: ({ frequencies, number }) => {
    const factor = number("factor");
    return { inverseFrequencies: frequencies.map((frequency) => frequency / factor), ropeScale: 1 };
  },
  llama3,
  yarn,
};

/** transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 `rope_parameters`. */
export function readRope(config: Config, headDim: number, file: string): Rope {
  const given = (config.rope_scaling || config.rope_parameters || {}) as Config;
  const { max_position_embeddings: longest, original_max_position_embeddings: original } = config;
  const fallback = given.original_max_position_embeddings ?? longest;
  const parameters: Config = { ...given, original_max_position_embeddings: original ?? fallback, longest };
  const kind = String(parameters.rope_type ?? parameters.type ?? "default");
  if (!Object.hasOwn(kinds, kind)) {
    const supported = Object.keys(kinds).join(", ");
    unsupported(`rope scaling of kind ${JSON.stringify(kind)}`, `only ${supported}`, file);
  }
  const partial = parameters.partial_rotary_factor ?? config.partial_rotary_factor ?? 1;
  if (partial !== 1) unsupported(`partial_rotary_factor is ${partial}`, "only whole heads are turned", file);
  if ("full_attention" in given) unsupported("rope differs between kinds of layers", "only one for all", file);
  const theta = positive({ rope_theta: 10000, ...config, ...given }, "rope_theta", file);
  const frequencies = Array.from({ length: headDim / 2 }, (_, i) => 1 / theta ** ((2 * i) / headDim));
  const number = (key: string) => positive(parameters, key, file);
  const { inverseFrequencies, ropeScale } = kinds[kind]!({ parameters, theta, frequencies, number });
  return { inverseFrequencies: inverseFrequencies.map(Math.fround), ropeScale };
}

/** Long wavelengths are stretched, short ones kept, those between blended. */
function llama3({ frequencies, number }: Base): Rope {
  const [factor, original] = [number("factor"), number("original_max_position_embeddings")];
  const [low, high] = [number("low_freq_factor"), number("high_freq_factor")];
  const inverseFrequencies = frequencies.map((frequency) => {
    const turns = (original * frequency) / (2 * Math.PI);
    if (turns < low) return frequency / factor;
    if (turns > high) return frequency;
    const smooth = (turns - low) / (high - low);
    return ((1 - smooth) * frequency) / factor + smooth * frequency;
  });
  return { inverseFrequencies, ropeScale: 1 };
}

/** YaRN, arXiv 2309.00071: pairs that turn often in the original context are kept, others stretched. */
function yarn({ parameters, theta, frequencies, number }: Base): Rope {
  const original = number("original_max_position_embeddings");
  const factor = parameters.factor == null ? number("longest") / original : number("factor");
  const pairs = frequencies.length;
  const pairTurning = (turns: number) => (pairs * Math.log(original / (turns * 2 * Math.PI))) / Math.log(theta);
  const whole = parameters.truncate !== false;
  // 0 and null: the default, as in transformers.
  const first = pairTurning(Number(parameters.beta_fast || 32));
  const last = pairTurning(Number(parameters.beta_slow || 1));
  const low = Math.max(whole ? Math.floor(first) : first, 0);
  const high = Math.min(whole ? Math.ceil(last) : last, 2 * pairs - 1);
  const span = low === high ? 0.001 : high - low;
  const inverseFrequencies = frequencies.map((frequency, i) => {
    const stretched = Math.min(Math.max((i - low) / span, 0), 1);
    return (frequency / factor) * stretched + frequency * (1 - stretched);
  });
  return { inverseFrequencies, ropeScale: yarnScale(parameters, factor) };
}

function yarnScale(parameters: Config, factor: number): number {
  if (typeof parameters.attention_factor === "number") return parameters.attention_factor;
  const scale = (weight: number) => (factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1);
  const { mscale, mscale_all_dim: all } = parameters;
  return mscale && all ? scale(Number(mscale)) / scale(Number(all)) : scale(1);
}

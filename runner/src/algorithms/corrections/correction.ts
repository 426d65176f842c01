import { sum } from "../advantages/estimator.ts";

export interface CorrectionSpec {
  level: "off" | "token" | "seq" | "geo";
  mode: "mask" | "clip" | "trunc";
  /** What is held against the bounds; all but `ratio` go with mask alone. */
  gate: keyof typeof gates;
  /** Of a divergence only the upper one counts. */
  threshold: [number, number];
}

/** Packed: arrays are `[T]`, `cu` `[B+1]`. Slots where `trained` is 0 are never read. */
export interface CorrectionInput {
  old: Float32Array;
  behaviour: Float32Array;
  trained: Uint8Array;
  cu: Int32Array;
}

/** `weights` `[T]`, without gradient; `outside` counts trained tokens out of bounds. */
export interface Correction {
  weights: Float32Array;
  outside: number;
}

/**
 * `algo.advantage.is_correction_gating`: how far the policies are apart at one token, by its log-probabilities: the log
 * of their ratio, or over the token and all others together (arXiv 2602.04879) KL(behaviour, old) and total variation.
 */
const gates = {
  ratio: (old: number, behaviour: number) => old - behaviour,
  binary_kl(old: number, behaviour: number) {
    // Below 1, or what remains has no logarithm.
    const [q, p] = [old, behaviour].map((log) => Math.min(Math.exp(log), 1 - 1e-7)) as [number, number];
    return p * Math.log(p / q) + (1 - p) * Math.log((1 - p) / (1 - q));
  },
  tv: (old: number, behaviour: number) => Math.abs(Math.exp(old) - Math.exp(behaviour)),
};

/** Of one row's tokens: each its own, their sum, or their mean (of the ratio's logs: the geometric mean). */
const levels: Record<Exclude<CorrectionSpec["level"], "off">, (gaps: number[]) => number[]> = {
  token: (gaps) => gaps,
  seq: (gaps) => new Array(gaps.length).fill(sum(gaps)),
  geo: (gaps) => new Array(gaps.length).fill(sum(gaps) / gaps.length),
};

/** A token's weight from its own ratio w and the level's u. */
const modes: Record<CorrectionSpec["mode"], (w: number, u: number, low: number, high: number) => number> = {
  mask: (w, u, low, high) => (u >= low && u <= high ? w : 0),
  clip: (_w, u, low, high) => Math.min(Math.max(u, low), high),
  trunc: (_w, u, _low, high) => Math.min(u, high),
};

/**
 * For the gap between the policies that train (old) and sampled (behaviour): w = exp(clamp(old - behaviour, ±30)). The
 * loss's denominator does not change.
 */
export function correct(spec: CorrectionSpec, { old, behaviour, trained, cu }: CorrectionInput): Correction {
  const weights = new Float32Array(trained.length);
  let outside = 0;
  if (spec.level === "off") return { weights: Float32Array.from(trained), outside };
  const isRatio = spec.gate === "ratio";
  const [low, high] = isRatio ? spec.threshold : [Number.NEGATIVE_INFINITY, spec.threshold[1]];
  for (const slots of trainedSlots(trained, cu)) {
    const gaps = slots.map((t) => gates[spec.gate](old[t]!, behaviour[t]!));
    levels[spec.level](gaps).forEach((level, position) => {
      const t = slots[position]!;
      const u = isRatio ? boundedExp(level) : level;
      weights[t] = modes[spec.mode](boundedExp(old[t]! - behaviour[t]!), u, low, high);
      if (!(u >= low && u <= high)) outside++;
    });
  }
  return { weights, outside };
}

/** The trained slots of each row. */
export function trainedSlots(trained: Uint8Array, cu: Int32Array): number[][] {
  return Array.from(cu.subarray(1), (end, row) => {
    const slots: number[] = [];
    for (let t = cu[row]!; t < end; t++) if (trained[t] === 1) slots.push(t);
    return slots;
  });
}

function boundedExp(log: number): number {
  return Math.exp(Math.min(Math.max(log, -30), 30));
}

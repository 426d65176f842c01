import { usageError } from "../../errors.ts";
import { sum } from "../advantages/estimator.ts";

export interface CorrectionSpec {
  level: "off" | "token" | "seq" | "geo";
  mode: "mask" | "clip" | "trunc";
  /** Of the importance ratio. */
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

/** From one row's log-ratios to the logs that are held against the bounds. */
const levels: Record<Exclude<CorrectionSpec["level"], "off">, (logs: number[]) => number[]> = {
  token: (logs) => logs,
  seq: (logs) => new Array(logs.length).fill(sum(logs)),
  geo: (logs) => new Array(logs.length).fill(sum(logs) / logs.length),
};

/** A token's weight from its own ratio w and the level's ratio u. */
const modes: Record<CorrectionSpec["mode"], (w: number, u: number, low: number, high: number) => number> = {
  mask: (w, u, low, high) => (u >= low && u <= high ? w : 0),
  clip: (_w, u, low, high) => Math.min(Math.max(u, low), high),
  trunc: (_w, u, _low, high) => Math.min(u, high),
};

/** Clipping a sequence's ratio would give each of its tokens the whole product. */
export function checkCorrection({ level, mode }: CorrectionSpec): void {
  if ((level === "seq" || level === "geo") && mode !== "mask") {
    throw usageError(`algo.advantage.is_correction_mode '${mode}' does not go with level '${level}'`, {
      fix: "take is_correction_mode: mask, or is_correction_level: token",
    });
  }
}

/**
 * For the gap between the policies that train (old) and sampled (behaviour): w = exp(clamp(old - behaviour, ±30)). The
 * loss's denominator does not change.
 */
export function correct(spec: CorrectionSpec, { old, behaviour, trained, cu }: CorrectionInput): Correction {
  const weights = new Float32Array(trained.length);
  let outside = 0;
  if (spec.level === "off") return { weights: Float32Array.from(trained), outside };
  const [low, high] = spec.threshold;
  for (let row = 0; row + 1 < cu.length; row++) {
    const slots: number[] = [];
    for (let t = cu[row]!; t < cu[row + 1]!; t++) if (trained[t] === 1) slots.push(t);
    const logs = slots.map((t) => old[t]! - behaviour[t]!);
    levels[spec.level](logs).forEach((level, position) => {
      const u = boundedExp(level);
      weights[slots[position]!] = modes[spec.mode](boundedExp(logs[position]!), u, low, high);
      if (!(u >= low && u <= high)) outside++;
    });
  }
  return { weights, outside };
}

function boundedExp(log: number): number {
  return Math.exp(Math.min(Math.max(log, -30), 30));
}

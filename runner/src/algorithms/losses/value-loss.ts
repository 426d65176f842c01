import type { Tensor } from "molt-native";
import type { PolicyLossOutput } from "./policy-loss.ts";

/** Each `[T]`, 0 where not trained. Only `values` carries a gradient. */
export interface ValueLossInput {
  values: Tensor;
  /** Before the update. */
  old: Tensor;
  returns: Tensor;
}

/**
 * Per token ½ max((V - G)², (V_old + clamp(V - V_old, ±clip) - G)²), as PPO's authors implemented it
 * (openai/baselines): a value that has moved by more than `clip` towards G is not moved further. Null is no clip.
 */
export function valueLoss({ values, old, returns }: ValueLossInput, clip: number | null): PolicyLossOutput {
  const half = (gap: Tensor) => gap.mul(gap).mul(0.5);
  const free = half(values.sub(returns));
  if (clip === null) return { loss: free, clipped: null };
  const held = half(old.add(values.sub(old).clamp(-clip, clip)).sub(returns));
  return { loss: free.maximum(held), clipped: held.gt(free) };
}

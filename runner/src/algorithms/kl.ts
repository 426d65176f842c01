import type { Tensor } from "molt-native";

export interface KlSpec {
  /** 0: no KL term, no reference model. */
  coef: number;
  estimator: "k1" | "k2" | "k3";
}

/**
 * KL(policy, reference) from d = logp - ref, `[T]` (http://joschu.net/blog/kl-approx.html): d, d²/2 and e^-d - 1 + d;
 * the latter two clamped to ±10.
 */
export const klEstimators: Record<KlSpec["estimator"], (d: Tensor) => Tensor> = {
  k1: (d) => d,
  k2: (d) => d.mul(d).mul(0.5).clamp(-10, 10),
  k3: (d) => d.clamp(-30, 30).neg().exp().sub(1).add(d).clamp(-10, 10),
};

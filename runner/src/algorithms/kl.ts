export interface KlSpec {
  /** 0: no KL term, no reference model. */
  coef: number;
  estimator: "k1" | "k2" | "k3";
  /** Taken off the rewards; else a term of the loss. */
  inReward: boolean;
}

/**
 * KL(policy, reference) of one token from d = logp - ref (http://joschu.net/blog/kl-approx.html): d, d²/2 and
 * e^-d - 1 + d; the latter two clamped to ±10.
 */
export const klEstimators: Record<KlSpec["estimator"], (d: number) => number> = {
  k1: (d) => d,
  k2: (d) => Math.min((d * d) / 2, 10),
  k3: (d) => Math.min(Math.exp(-Math.max(d, -30)) - 1 + d, 10),
};

/**
 * The adaptive coefficient (arXiv 1909.08593): up where the KL measured over `rollouts` is above its target, down where
 * below, by at most a fifth of rollouts / horizon; of more than a horizon at once, by at most a fifth.
 */
export function adaptedKlCoef(coef: number, kl: number, target: number, horizon: number, rollouts: number): number {
  const error = Math.min(Math.max(kl / target - 1, -0.2), 0.2);
  return coef * (1 + error * Math.min(rollouts / horizon, 1));
}

import { type AdvantageEstimator, perGroup } from "./estimator.ts";

/**
 * Pass@k training (arXiv 2508.10751, analytical form). A reward above 0 is a success; n rollouts, f of them failures,
 * p = 1 - C(f, k) / C(n, k) and s = sqrt(p (1 - p)) over all choices of k. A success gets (1 - p) / s; a failure, whose
 * choices fail by C(f - 1, k - 1) / C(n - 1, k - 1), that much less. Exactly 0 where every choice does the same; k is
 * below n, where there would be but one.
 */
export const passK: AdvantageEstimator = (rollouts, { pass_k: most }) =>
  perGroup(rollouts, (rewards) => {
    const n = rewards.length;
    const k = Math.min(most, n - 1);
    const failures = rewards.filter((reward) => reward <= 0).length;
    const allFail = chosenOf(failures, n, k);
    const deviation = Math.sqrt(allFail * (1 - allFail));
    if (deviation === 0) return rewards.map(() => 0);
    const withFailure = chosenOf(failures - 1, n - 1, k - 1);
    return rewards.map((reward) => (allFail - (reward > 0 ? 0 : withFailure)) / deviation);
  });

/** C(part, k) / C(whole, k). */
function chosenOf(part: number, whole: number, k: number): number {
  let ratio = 1;
  for (let i = 0; i < k; i++) ratio *= Math.max(part - i, 0) / (whole - i);
  return ratio;
}

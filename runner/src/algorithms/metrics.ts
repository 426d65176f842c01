/** Arrays `[T]` of one microbatch. Slots where `trained` is 0 are never read. */
export interface TokenValues {
  trained: Uint8Array;
  logp: Float32Array;
  old: Float32Array;
  /** NaN in supervised rows. */
  behaviour: Float32Array;
  entropy: Float32Array;
  /** Null without a reference. */
  ref: Float32Array | null;
}

export interface UpdateMetrics {
  /** Over trained tokens: divided by the update's tokens they are means. */
  sums: Record<string, number>;
  maxima: Record<string, number>;
  /** A sum, and how many it is over. */
  means?: Record<string, [sum: number, count: number]>;
}

export function addMetrics(total: UpdateMetrics, { sums, maxima, means = {} }: UpdateMetrics): void {
  total.means ??= {};
  for (const [name, [sum, count]] of Object.entries(means)) {
    const [before, counted] = total.means[name] ?? [0, 0];
    total.means[name] = [before + sum, counted + count];
  }
  for (const [name, value] of Object.entries(sums)) total.sums[name] = (total.sums[name] ?? 0) + value;
  for (const [name, value] of Object.entries(maxima)) total.maxima[name] = Math.max(total.maxima[name] ?? 0, value);
}

/**
 * kl: from the reference, by its estimator; policy_kl = old - new (k1 of KL(old, new)); ratio = exp(new - old),
 * ratio_gap = |ratio - 1|; logprob_gap = |old - behaviour|: sampler against trainer on the same tokens.
 */
export function tokenMetrics({ trained, logp, old, behaviour, entropy, ref }: TokenValues, kl: (d: number) => number) {
  const sums = { entropy: 0, policy_kl: 0, ratio_mean: 0, logprob_gap_mean: 0, ...(ref && { kl: 0 }) };
  const maxima = { logprob_gap_max: 0, ratio_gap_max: 0 };
  for (let t = 0; t < trained.length; t++) {
    if (trained[t] !== 1) continue;
    const ratio = Math.exp(logp[t]! - old[t]!);
    sums.entropy += entropy[t]!;
    if (ref) sums.kl! += kl(logp[t]! - ref[t]!);
    sums.policy_kl += old[t]! - logp[t]!;
    sums.ratio_mean += ratio;
    maxima.ratio_gap_max = Math.max(maxima.ratio_gap_max, Math.abs(ratio - 1));
    const gap = Math.abs(old[t]! - behaviour[t]!);
    sums.logprob_gap_mean += gap;
    maxima.logprob_gap_max = Math.max(maxima.logprob_gap_max, gap);
  }
  return { sums, maxima };
}

import type { Tensor } from "molt-native";
import { RunnerError } from "../../errors.ts";
import type { LossSpec, PolicyLoss, PolicyLossInput, PolicyLossOutput } from "./policy-loss.ts";
import { type ValueLossInput, valueLoss } from "./value-loss.ts";

/** Each `[T]`, 0 where not trained. `logp` and `entropy` carry gradients. */
export interface ObjectiveInput extends PolicyLossInput {
  entropy: Tensor;
  /** What a token's terms count in the update's aggregation: 1 each in the token mean. */
  shares: Tensor;
  /** Correction weights times `shares`. */
  weights: Tensor;
  /** Null without a KL term. */
  ref: Tensor | null;
}

/** Backward takes `total`; the others are sums over the microbatch's trained tokens. */
export interface Objective {
  total: Tensor;
  policy: Tensor;
  clipped: Tensor | null;
}

/**
 * (Σ policy + β Σ KL - c Σ entropy) / numTokens, the update's trained tokens over all ranks and microbatches:
 * partial losses add up to the same whole however rows are cut. Call inside `scope`.
 */
export function objective(input: ObjectiveInput, spec: LossSpec, policyLoss: PolicyLoss, numTokens: number): Objective {
  const { logp, ref, entropy, shares, weights } = input;
  const trained = shares.gt(0);
  const total = (values: Tensor, share = shares) => values.mul(share).where(trained, 0).sum();
  const { loss, clipped } = readLoss(policyLoss(input, spec), logp, spec.name);
  const policy = total(loss, weights);
  let sum = policy;
  if (ref !== null && !spec.kl.inReward) {
    // Whichever estimate is shown, the gradient is that of KL(policy, reference) over the policy's samples: d ∇logp.
    sum = sum.add(total(logp.sub(ref).clamp(-10, 10).detach().mul(logp)).mul(spec.kl.coef));
  }
  if (spec.entropyCoef !== 0) sum = sum.sub(total(entropy).mul(spec.entropyCoef));
  return { total: sum.div(numTokens), policy, clipped: clipped && shares.where(clipped, 0).sum() };
}

/** Σ value loss / numTokens, as the policy's. Call inside `scope`. */
export function valueObjective(
  { shares, ...input }: ValueLossInput & { shares: Tensor },
  clip: number | null,
  numTokens: number,
) {
  const { loss, clipped } = valueLoss(input, clip);
  const value = loss.mul(shares).where(shares.gt(0), 0).sum();
  return { total: value.div(numTokens), value, clipped: clipped && shares.where(clipped, 0).sum() };
}

/** A file of the recipe's may give anything. */
function readLoss(given: PolicyLossOutput | undefined, { shape }: Tensor, name: string): PolicyLossOutput {
  const shapes = [given?.loss, given?.clipped ?? given?.loss].map((tensor) => `[${tensor?.shape}]`);
  if (shapes.every((found) => found === `[${shape}]`)) return given!;
  const message = `actor.loss_mode gave loss and clipped of shapes ${shapes.join(" and ")}, not of one value a token`;
  throw new RunnerError(message, { position: { file: name } });
}

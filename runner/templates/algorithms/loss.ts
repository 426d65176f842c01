import type { PolicyLoss } from "molt-runner";

/** NAME: -ratio A, of each token. Say here what yours does, as a formula, and where it is from. */
const FUNCTION: PolicyLoss = ({ logp, old, advantages }) => {
  const ratio = logp.sub(old).clamp(-30, 30).exp();
  return { loss: ratio.mul(advantages).neg(), clipped: null };
};

export default FUNCTION;

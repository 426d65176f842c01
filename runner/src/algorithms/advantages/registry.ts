import { drGrpo } from "./dr-grpo.ts";
import type { AdvantageEstimator } from "./estimator.ts";
import { flashReinforce } from "./flash-reinforce.ts";
import { gae } from "./gae.ts";
import { grpo } from "./grpo.ts";
import { maxrl } from "./maxrl.ts";
import { onPolicyDistill } from "./on-policy-distill.ts";
import { opo } from "./opo.ts";
import { passK } from "./pass-k.ts";
import { reinforce } from "./reinforce.ts";
import { reinforceBaseline } from "./reinforce-baseline.ts";
import { rloo } from "./rloo.ts";
import { turnCredit } from "./turn-credit.ts";

/** `algo.advantage.estimator`. */
export const advantageEstimators: Record<string, AdvantageEstimator> = {
  reinforce_baseline: reinforceBaseline,
  reinforce,
  grpo,
  dr_grpo: drGrpo,
  rloo,
  flash_reinforce: flashReinforce,
  opo,
  maxrl,
  pass_k: passK,
  turn_credit: turnCredit,
  gae,
  on_policy_distill: onPolicyDistill,
};

/** Whether a critic's values are read. */
export const needsCritic = (estimator: string) => estimator === "gae";

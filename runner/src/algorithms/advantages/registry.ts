import { drGrpo } from "./dr-grpo.ts";
import type { AdvantageEstimator } from "./estimator.ts";
import { flashReinforce } from "./flash-reinforce.ts";
import { grpo } from "./grpo.ts";
import { maxrl } from "./maxrl.ts";
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
};

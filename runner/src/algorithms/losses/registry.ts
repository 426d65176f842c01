import { pick } from "../pick.ts";
import type { PolicyLoss } from "./policy-loss.ts";
import { ppo } from "./ppo.ts";
import { sft } from "./sft.ts";

/** `actor.loss_mode`, and `sft`. */
export const policyLosses: Record<string, PolicyLoss> = { ppo, sft };

export function policyLoss(name: string): PolicyLoss {
  return pick(policyLosses, name, "actor.loss_mode");
}

import { cispo } from "./cispo.ts";
import { gspo } from "./gspo.ts";
import { importance } from "./importance.ts";
import type { PolicyLoss } from "./policy-loss.ts";
import { ppo } from "./ppo.ts";
import { sft } from "./sft.ts";

/** `actor.loss_mode`; `sft` is the verb's. */
export const policyLosses: Record<string, PolicyLoss> = { ppo, gspo, cispo, importance, sft };

import type { Recipe } from "../schema.ts";
import {
  clipRange,
  correctionMode,
  correctionOff,
  correctionOffInBf16,
  correctionThreshold,
  klEstimator,
} from "./algorithms.ts";
import { promptFileTwice, promptWeights } from "./data.ts";
import { evaluationWithoutData, greedyRepeats } from "./evaluation.ts";
import type { Finding, Rule, Verb } from "./finding.ts";
import { groupSize, inFlight, minGroup, updates } from "./groups.ts";
import { exportOverSource } from "./model.ts";
import { required } from "./required.ts";
import { replyLength, temperature, topP, turnTimeout } from "./sampling.ts";

export type { Finding, Verb } from "./finding.ts";

/** The rules that hold for each verb. */
const rules: { verbs: Verb[]; rules: Rule[] }[] = [
  { verbs: ["run", "sft", "eval"], rules: [required] },
  { verbs: ["run", "sft"], rules: [exportOverSource, promptWeights, promptFileTwice] },
  { verbs: ["run", "eval"], rules: [replyLength, turnTimeout, greedyRepeats] },
  {
    verbs: ["run"],
    rules: [
      topP,
      temperature,
      groupSize,
      minGroup,
      inFlight,
      updates,
      correctionThreshold,
      correctionOff,
      correctionOffInBf16,
      correctionMode,
      klEstimator,
      clipRange,
      evaluationWithoutData,
    ],
  },
];

export function guardrails(recipe: Recipe, verb: Verb): Finding[] {
  return rules
    .filter(({ verbs }) => verbs.includes(verb))
    .flatMap((set) => set.rules.flatMap((rule) => rule(recipe, verb)));
}

import { DeadlineError, withDeadline } from "../../deadline.ts";
import { recordedCalls } from "../recorded.ts";
import { agentError, type RolloutContext, RolloutFailure, readResult } from "../rollout.ts";
import { Session } from "../trajectory.ts";
import type { Grader, Rollout, Row } from "../types.ts";

/** The rollout with the grader's reward in place of its own. Rejects with a `RolloutFailure`. */
export async function gradeRollout(
  grade: Grader,
  rollout: Rollout,
  row: Row,
  { tokenizer, limits, locate }: Pick<RolloutContext, "tokenizer" | "limits" | "locate">,
): Promise<Rollout> {
  const session = new Session(tokenizer);
  const replies = await Promise.all(recordedCalls(rollout).map(({ sampled }) => session.textOf(sampled)));
  const call = async () => grade(replies.at(-1) ?? "", row.label, { ...rollout, row, replies });
  try {
    const said = await withDeadline(call(), limits.rewardSeconds, "the grader");
    const given = typeof said === "object" && said !== null ? said : { reward: said };
    const { reward, score = reward, info } = readResult(given, "grade", "a number, or { reward, score?, info? }");
    return { ...rollout, reward, score, info: { ...rollout.info, ...info } };
  } catch (error) {
    if (error instanceof DeadlineError) throw new RolloutFailure("grader_timeout", error.message);
    throw agentError("the grader", error, locate, "reward");
  }
}

import type { Group } from "../agents/types.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import type { RunEvent } from "../telemetry/events.ts";

const promptLength = 120;
const replyLength = 400;

/** At 1, 2, 4, 8, … */
export function showsSample(step: number): boolean {
  return Number.isInteger(Math.log2(step));
}

/** A step's first rollout: the prompt's end, then all from the first reply on. */
export async function sampleOf(step: number, groups: Group[], tokenizer: Tokenizer): Promise<RunEvent | null> {
  const [rollout] = groups.flatMap((group) => group.rollouts);
  const [segment] = rollout?.segments ?? [];
  if (!rollout || !segment) return null;
  const { rolloutId, reward } = rollout;
  const start = segment.turns[0]!.start;
  const [prompt, reply] = await tokenizer.decodeBatch([
    [...segment.tokens.subarray(0, start)],
    [...segment.tokens.subarray(start)],
  ]);
  const end = [...prompt!].slice(-promptLength).join("");
  const beginning = [...reply!].slice(0, replyLength).join("");
  return {
    type: "sample",
    step,
    rolloutId,
    reward,
    prompt: end === prompt ? end : `…${end}`,
    reply: beginning === reply ? beginning : `${beginning}…`,
  };
}

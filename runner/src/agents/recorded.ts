import type { Tokenizer } from "../data/tokenizer.ts";
import type { GenerateRequest, GenerateResult } from "../engines/types.ts";
import { Mask, type Rollout } from "./types.ts";

/** Characters of either prompt, where they part. */
const shownCharacters = 200;

/** The calls whose replies reached the agent, in the order in which it made them, each with its whole prompt. */
export function recordedCalls({ segments }: Rollout) {
  const calls = new Map<number, { prompt: Int32Array; sampled: GenerateResult }>();
  for (const { tokens, logprobs, versions, mask, turns } of segments) {
    for (const { start, end, callId, stop } of turns) {
      if (mask[start] === Mask.rejected) continue;
      const sampled: GenerateResult = {
        tokenIds: [...tokens.subarray(start, end)],
        logprobs: [...logprobs.subarray(start, end)],
        versions: [...versions.subarray(start, end)],
        // An engine knows no context: to it, a reply that fills it has its full length.
        stop: stop === "stop" ? "stop" : "length",
      };
      calls.set(Number(/\d+$/.exec(callId)), { prompt: tokens.subarray(0, start), sampled });
    }
  }
  return [...calls].sort(([one], [other]) => one - other).map(([, call]) => call);
}

/** In place of an engine: answers each call with the recorded one of the same prompt, the earliest that is `open`. */
export function playback(rollout: Rollout, tokenizer: Tokenizer) {
  const open = recordedCalls(rollout);
  const count = open.length;
  async function generate(_url: string, { tokenIds, sampling }: GenerateRequest): Promise<GenerateResult> {
    const asked = Int32Array.from(tokenIds);
    const found = open.findIndex(({ prompt }) => `${prompt}` === `${asked}`);
    const call = open[found] ?? open[0];
    const number = `call ${count - open.length + 1}`;
    if (!call) throw new Error(`${number} was never recorded: the rollout has ${count}, and ended as ${rollout.stop}`);
    if (found < 0) {
      const at = asked.findIndex((id, index) => id !== call.prompt[index]);
      const texts = [asked, call.prompt].map((ids) => tokenizer.decode([...ids.subarray(at)]));
      const [now, then] = (await Promise.all(texts)).map((text) => JSON.stringify(text.slice(0, shownCharacters)));
      throw new Error(`${number} has another prompt than was recorded, from token ${at} on: ${now}; recorded: ${then}`);
    }
    open.splice(found, 1);
    const text = await tokenizer.decode(call.sampled.tokenIds);
    return { ...call.sampled, stopString: sampling.stop?.find((stop) => text.includes(stop)) };
  }
  return { generate, open };
}

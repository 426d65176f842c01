import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { beforeAll, expect, test } from "vitest";
import { Tokenizer } from "../data/tokenizer.ts";
import type { GenerateResult } from "../engines/types.ts";
import { playback, recordedCalls } from "./recorded.ts";
import { Session } from "./trajectory.ts";
import type { Rollout } from "./types.ts";

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../../recipes/quickstart/model", import.meta.url)));
});

const ids = fc.array(fc.integer({ min: 6, max: 100 }), { minLength: 1, maxLength: 4 });
/** Each call goes on from an earlier one, or from none; some replies reach nobody. */
const calls = fc.array(fc.record({ from: fc.nat(), adds: ids, says: ids, lost: fc.boolean() }), {
  minLength: 1,
  maxLength: 8,
});

/** A session of such calls, and what was asked and said in it, kept apart. */
function record(script: { from: number; adds: number[]; says: number[]; lost: boolean }[]) {
  const session = new Session(tokenizer);
  const said: { prompt: number[]; sampled: GenerateResult }[] = [];
  for (const [number, { from, adds, says, lost }] of script.entries()) {
    const before = said[from % (said.length + 1)];
    // A mark of its own, so that no two prompts begin alike by chance.
    const prompt = [...(before ? [...before.prompt, ...before.sampled.tokenIds] : []), 101 + number, ...adds];
    const logprobs = says.map((_, at) => -at - number);
    const sampled = { tokenIds: says, logprobs, versions: says.map(() => number), stop: "length" as const };
    const info = { callId: `g/0.0.${number}`, stop: "length" as const, temperature: 1 };
    const turn = session.commit(session.prepareTokens(prompt), sampled, null, info);
    if (lost) turn.isDelivered = false;
    else said.push({ prompt, sampled });
  }
  return { rollout: { segments: session.toSegments(), stop: "env_done" } as unknown as Rollout, said };
}

test("the calls of any session come back as they were made, and are played back, also in another order", async () => {
  await fc.assert(
    fc.asyncProperty(calls, fc.boolean(), async (script, backwards) => {
      const { rollout, said } = record(script);
      const plain = recordedCalls(rollout).map(({ prompt, sampled }) => ({ prompt: [...prompt], sampled }));
      expect(plain).toEqual(said);
      const { generate, open } = playback(rollout, tokenizer);
      const ask = (tokenIds: number[]) => generate("", { requestId: "", tokenIds, version: null, sampling });
      for (const { prompt, sampled } of backwards ? said.toReversed() : said) {
        expect(await ask(prompt)).toMatchObject(sampled);
      }
      expect(open).toEqual([]);
      await expect(ask([1])).rejects.toThrow(
        `call ${said.length + 1} was never recorded: the rollout has ${said.length}, and ended as env_done`,
      );
    }),
    { numRuns: 200 },
  );
});

const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 8, stopTokenIds: [], seed: 0 };

test("a stop string that ended a reply is found again; the same prompt twice is answered in order", async () => {
  const [first, second] = await Promise.all([tokenizer.encode("go on|"), tokenizer.encode("end")]);
  const { rollout } = record([{ from: 0, adds: [6], says: first!, lost: false }]);
  const again = record([{ from: 0, adds: [6], says: second!, lost: false }]).rollout.segments[0]!;
  rollout.segments.push({ ...again, turns: again.turns.map((turn) => ({ ...turn, callId: "g/0.0.1" })) });
  const { generate } = playback(rollout, tokenizer);
  const request = { requestId: "", tokenIds: [101, 6], version: null, sampling: { ...sampling, stop: ["#", "|"] } };
  expect(await generate("", request)).toMatchObject({ tokenIds: first, stopString: "|" });
  expect(await generate("", request)).toMatchObject({ tokenIds: second, stopString: undefined });
});

import fc from "fast-check";
import { expect, it } from "vitest";
import type { Rollout } from "../../runner/src/agents/types.ts";
import {
  blocksOf,
  parseRange,
  rolloutFacts,
  type Shown,
  scaleOf,
  shownRollout,
  tokenFacts,
  tokenText,
} from "./rollout-view.ts";

const nan = Number.NaN;

/** A prompt of 2, a turn of 2, a tool's word, a turn of 2 that reached nobody. */
const rollout: Rollout = {
  ...{ runId: "r", promptId: "p", groupId: "p@0.0", rolloutId: "p@0.0/1", attempt: 0 },
  segments: [
    {
      tokens: Int32Array.of(1, 10, 11, 12, 13, 14, 15),
      mask: Uint8Array.of(0, 0, 1, 1, 0, 3, 3),
      logprobs: Float32Array.of(nan, nan, -0.25, -3, nan, -0.5, -8),
      versions: Int32Array.of(-1, -1, 3, 5, -1, 5, 5),
      turns: [
        { start: 2, end: 4, callId: "c.0", stop: "stop", temperature: 1, source: "agent.ts:7" },
        { start: 5, end: 7, callId: "c.1", stop: "abort", temperature: 1 },
      ],
    },
  ],
  ...{ reward: 0.5, score: 1, info: { calls: 2 }, stop: "env_done" },
  timings: { startedAt: 0, seconds: 2, modelSeconds: 1.5 },
};
const values = {
  advantages: Float32Array.of(0.75, -2.5),
  logprobs: Float32Array.of(-0.5, -2.75),
  entropy: Float32Array.of(0, 1.5),
};
const said = ["<bos>", " a", "<b>", "\n", "\u202ex", "<0xE2><0x9C>", " "];
const [segment] = shownRollout(rollout, { "p@0.0/1/0": values }, [said]).segments;

it("lays stored values over the trained tokens, and knows what is not stored", () => {
  expect([...segment!.values.gap]).toEqual([nan, nan, -0.25, 0.25, nan, nan, nan]);
  expect([...segment!.values.advantage]).toEqual([nan, nan, 0.75, -2.5, nan, nan, nan]);
  expect([...segment!.values.age]).toEqual([nan, nan, 2, 0, nan, 0, 0]);
  const bare = shownRollout(rollout, {}).segments[0]!;
  for (const coloring of ["gap", "advantage", "entropy"] as const) {
    expect([...bare.tokens.keys()].map((t) => scaleOf(coloring).entryOf(bare, t))).toEqual(new Array(7).fill(-1));
  }
});

it("is a copy, whatever the stored arrays share", () => {
  const before = segment!.tokens[0];
  rollout.segments[0]!.tokens[0] = 99;
  expect(segment!.tokens[0]).toBe(before);
  rollout.segments[0]!.tokens[0] = 1;
});

it("parts a segment into turns and what lies between them, without a gap", () => {
  const names = blocksOf(segment!).map(({ name, start, end }) => `${name} ${start}-${end}`);
  expect(names).toEqual(["Context 0-2", "Turn 1 2-4", "Context 4-5", "Turn 2 5-7"]);
});

it("shades by magnitude, keeps what is below 0 apart, and says in the legend what a shade means", () => {
  const styles = (coloring: Parameters<typeof scaleOf>[0]) => {
    const { entries, entryOf } = scaleOf(coloring);
    return [2, 3].map((t) => Object.values(entries[entryOf(segment!, t)]!).join(": "));
  };
  expect(styles("mask")).toEqual(["mask-trained: trained", "mask-trained: trained"]);
  expect(styles("logprob")).toEqual(["level-1: 0.1 to 0.5", "level-3: 2 to 5"]);
  expect(styles("gap")).toEqual(["level-3 below: below 0: 0.2 to 1", "level-3: 0.2 to 1"]);
  expect(styles("advantage")).toEqual(["level-2: 0.5 to 1", "level-4 below: below 0: over 2"]);
  expect(styles("entropy")).toEqual(["level-0: 0 to 0.1", "level-3: 1 to 2"]);
  expect(styles("age")).toEqual(["level-2: 1 to 2", "level-0: 0"]);
});

it("shows markup, controls and what turns text around as text, and what is not seen by a sign", () => {
  expect([...said.keys()].map((t) => tokenText(segment!, t))).toEqual([
    ...["<bos>", " a", "<b>", "⏎", "\\u{202e}x", "<0xE2><0x9C>", "·"],
  ]);
  expect(tokenText(shownRollout(rollout, {}).segments[0]!, 1)).toBe("[10]");
  const one = (text: string) => tokenText({ ...segment!, texts: [text] }, 0);
  fc.assert(
    fc.property(fc.string({ unit: "binary" }), (text) => {
      expect(one(text)).not.toMatch(/\p{C}/u);
      expect(one(text)).not.toBe("");
    }),
  );
});

it("says all that is known of a token and of a rollout", () => {
  expect(tokenFacts(segment!, 3, [12])).toEqual({
    ...{ token: "3", id: "12 (special)", text: "⏎", mask: "trained", "log-probability": "-3.0000", gap: "0.2500" },
    ...{ advantage: "-2.5000", entropy: "1.5000", version: "5" },
  });
  expect(tokenFacts(segment!, 0, [])).toMatchObject({ mask: "context", gap: "-", version: "-" });
  expect(tokenFacts(segment!, 5, [])).toMatchObject({ mask: "rejected: it reached nobody", advantage: "-" });
  const shown: Shown = { ...{ id: "p@0.0/1", step: 4, dropped: "no_signal", special: [], why: null }, rollouts: [] };
  const facts = (trained: Parameters<typeof shownRollout>[1]) => rolloutFacts(shown, shownRollout(rollout, trained));
  expect(facts({ "p@0.0/1/0": values })).toEqual({
    ...{ reward: "0.500", score: "1.000", advantage: "0.750, -2.500", stop: "env_done", dropped: "no_signal" },
    ...{ step: "4", attempt: "0", began: "1970-01-01T00:00:00.000Z", "info calls": "2.000" },
    seconds: "2.00, 1.50 of them in model calls",
  });
  expect(facts({})).toMatchObject({ advantage: "not stored" });
});

it("reads ranges as the command line does", () => {
  const most = Number.MAX_VALUE;
  expect(["0..0.5", "1..", "..3", "-1 .. 2", "7", "", "x", "1..x"].map(parseRange)).toEqual([
    ...[[0, 0.5], [1, most], [-most, 3], [-1, 2], [7, 7], undefined, undefined, undefined],
  ]);
});

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it, onTestFinished } from "vitest";
import { type ServedTurn, Session } from "../agents/trajectory.ts";
import { Mask, type Rollout, type Segment } from "../agents/types.ts";
import { PromptQueue } from "../data/order.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { type LoopServices, TrainingLoop } from "../loop/loop.ts";
import { emptyStage, funnelOf } from "./funnel.ts";
import { EventLog } from "./log.ts";
import type { GroupRecord } from "./shards.ts";

/** A model call: it follows one before it (by index), or begins a segment. */
interface Call {
  tokens: number;
  context: number;
  parent: number | null;
  isDelivered: boolean;
}

const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
const noTokenizer = null as unknown as Tokenizer;

/** A session as the gateway stores it. A reply that others go on from has reached somebody. */
function segmentsOf(calls: Call[]): Segment[] {
  const session = new Session(noTokenizer);
  const served: ServedTurn[] = [];
  for (const [index, { tokens, context, parent }] of calls.entries()) {
    const contextIds = Array(context).fill(1);
    const before = parent === null ? null : served[parent]!;
    const pending = { tokenIds: [], parent: before, contextIds, text: null, messageCount: null };
    const many = (value: number) => Array(tokens).fill(value);
    const sampled = { tokenIds: many(5), logprobs: many(-1), versions: many(0), stop: "stop" as const };
    served.push(session.commit(pending, sampled, null, { callId: `c${index}`, stop: "stop", temperature: 1 }));
  }
  calls.forEach(({ isDelivered }, index) => {
    served[index]!.isDelivered = isDelivered;
  });
  return session.toSegments();
}

function record(sessions: Segment[][], reason?: string): GroupRecord {
  const ids = { runId: "r", promptId: "p", groupId: "g", attempt: 0 };
  const scores = { reward: 1, score: 1, info: {}, stop: "stop" as const };
  const timings = { startedAt: 0, seconds: 3, modelSeconds: 1 };
  const rollouts = sessions.map(
    (segments, index): Rollout => ({ ...ids, rolloutId: `g/${index}`, segments, ...scores, timings }),
  );
  const group = { ...ids, epoch: 0, admittedVersion: 0, rollouts, failed: [] };
  return { group, ...(reason !== undefined && { dropped: { reason } }) };
}

const callsOf = fc
  .array(
    fc.record({
      tokens: fc.integer({ min: 1, max: 5 }),
      context: fc.integer({ min: 1, max: 3 }),
      follows: fc.option(fc.nat(), { nil: null }),
      isLost: fc.boolean(),
    }),
    { maxLength: 6 },
  )
  .map((given) => {
    const parents = given.map(({ follows }, index) => (follows === null || index === 0 ? null : follows % index));
    return given.map(({ tokens, context, isLost }, index): Call => {
      const isDelivered = !isLost || parents.includes(index);
      return { tokens, context, parent: parents[index]!, isDelivered };
    });
  });
const reasons = fc.constantFrom(undefined, "no_signal", "stale", "engine");
const groupsOf = fc.array(fc.record({ sessions: fc.array(callsOf, { maxLength: 4 }), reason: reasons }));

describe("the funnel", () => {
  // invariant 1
  it("counts each sampled token once: trained, masked with a reason or dropped with a reason", () => {
    fc.assert(
      fc.property(groupsOf, (groups) => {
        const funnel = funnelOf(groups.map(({ sessions, reason }) => record(sessions.map(segmentsOf), reason)));
        const tokens = (wanted: (call: Call, reason: string | undefined) => boolean) =>
          sum(
            groups.flatMap(({ sessions, reason }) =>
              sessions.flat().flatMap((call) => (wanted(call, reason) ? call.tokens : [])),
            ),
          );
        expect(funnel.sampled).toBe(tokens(() => true));
        expect(funnel.trained).toBe(tokens(({ isDelivered }, reason) => isDelivered && reason === undefined));
        expect(sum(Object.values(funnel.masked))).toBe(
          tokens(({ isDelivered }, reason) => !isDelivered && reason === undefined),
        );
        for (const reason of ["no_signal", "stale", "engine"]) {
          expect(funnel.dropped[reason] ?? 0).toBe(tokens((_, why) => why === reason));
        }
        expect(funnel.sampled).toBe(
          funnel.trained + sum(Object.values(funnel.masked)) + sum(Object.values(funnel.dropped)),
        );
        expect(funnel.calls).toBe(groups.flatMap(({ sessions }) => sessions.flat()).length);
        expect(sum(Object.values(funnel.fates).map((fate) => fate.tokens))).toBe(funnel.sampled);
      }),
    );
  });

  it("has masks by name and examples of what is remarkable", () => {
    const [segment] = segmentsOf([{ tokens: 4, context: 2, parent: null, isDelivered: true }]);
    segment!.mask.set([Mask.stale, Mask.truncated, Mask.truncated], 2);
    // Three more were sampled, and cut at a seam.
    segment!.turns[0]!.cut = 3;
    const funnel = funnelOf([record([[segment!], [segment!]]), record([[segment!]], "stale")]);
    expect(funnel.masked).toEqual({ stale: 2, truncated: 4, cut: 6 });
    expect(funnel).toMatchObject({ sessions: 3, calls: 3, turns: 3, rows: 2, sampled: 21, trained: 2 });
    expect(funnel.dropped).toEqual({ stale: 7 });
    expect(funnel.examples).toMatchObject({ "dropped/stale": ["g/0"], "stop/stop": ["g/0", "g/1", "g/0"] });
    expect(funnel.fates).toEqual({
      trained: { sessions: 2, tokens: 14, reward: 2 },
      stale: { sessions: 1, tokens: 7, reward: 1 },
    });
  });
});

const told: Call = { tokens: 2, context: 1, parent: null, isDelivered: true };
const masked = (segments: Segment[]) => {
  for (const { mask } of segments) mask.fill(Mask.truncated, 1);
  return segments;
};

// case G3
describe.each([
  ["sessions", [record([])], "sessions: no rollout of the batch came to an end"],
  ["calls", [record([[], []])], "calls: none of 2 sessions sampled anything"],
  ["turns", [record([segmentsOf([{ ...told, isDelivered: false }])])], "turns: none of 1 replies reached its agent"],
  [
    "rows",
    [record([segmentsOf([told])], "no_signal")],
    "rows: all groups were dropped (tokens by reason: no_signal: 2)",
  ],
  ["tokens", [record([masked(segmentsOf([told]))])], "tokens: 1 rows, and each sampled token is masked (truncated: 2)"],
])("a batch that is empty from its %s on", (_, [broken], message) => {
  it("says so", () => {
    expect(emptyStage(funnelOf([broken!]))).toBe(message);
    expect(emptyStage(funnelOf([broken!, record([segmentsOf([told])])]))).toBeNull();
  });

  it("stops the run when it comes again, with the stage's name", async () => {
    const directory = mkdtempSync(join(tmpdir(), "funnel-"));
    onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
    const log = new EventLog(join(directory, "events.ndjson"));
    const { rollouts } = broken!.group;
    const reason = "engine" as const;
    const failed = { runId: "r", promptId: "p", groupId: "g", attempt: 0, reason, message: "it is gone" };
    const services = {
      rollout: async (_prompt, _groupId, rolloutId) => rollouts[0] ?? { ...failed, rolloutId },
      train: async (groups) => {
        const detail = "nothing";
        const reason = broken!.dropped?.reason ?? "no_trainable_tokens";
        const dropped = new Map(groups.map(({ groupId }) => [groupId, reason]));
        return { metrics: {}, updates: 0, dropped, skipped: { reason: "no_trainable_tokens", detail } };
      },
      sync: async () => ({ seconds: 0, checksum: "c", engines: 1 }),
      evaluate: null,
      storeRollouts: async () => {},
      checkpoint: async () => {},
      died: new Promise<never>(() => {}),
    } satisfies LoopServices;
    const amounts = { steps: 4, batchSize: 2, samplesPerPrompt: 1, minGroup: 0, maxStaleness: 0, maxInFlight: null };
    const cadence = { groupTimeout: 60, evalSteps: -1, evalAtStart: false, evalApart: false, saveSteps: -1 };
    const prompts = new PromptQueue({ promptIds: ["a", "b", "c", "d"], seed: 1, epochs: 1, maxAttempts: 1 });
    const options = { ...amounts, ...cadence, stopAfterSkipped: 2, deterministic: false };
    const loop = new TrainingLoop(options, services, prompts, log, null).run(new AbortController().signal);
    const stage = message.slice(0, message.indexOf(":"));
    await expect(loop).rejects.toThrow(`2 steps in a row were skipped: ${stage}:`);
    const events = [...log.read()];
    expect(events.filter(({ type }) => type === "funnel")).toHaveLength(2);
    expect(events.find(({ type }) => type === "step_skipped")).toMatchObject({
      detail: expect.stringMatching(`^${stage}:`),
    });
  });
});

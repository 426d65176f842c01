/** Everything a run says about itself, one JSON object a line in `events.ndjson`: docs/events.md. */
import { z } from "zod";

/** Goes up when a field changes its meaning; what is only new keeps it. */
export const eventVersion = 1;

const [text, count, number] = [z.string(), z.int().nonnegative(), z.number()];
const totalSteps = count.nullable();
/** JSON has no NaN: it comes back from null. */
const value = z.preprocess((given) => given ?? Number.NaN, z.union([number, z.nan()]));
const [values, counts] = [z.record(text, value), z.record(text, count)];
const ofGroup = { groupId: text, promptId: text, attempt: count };
const stages = { sessions: count, calls: count, turns: count, rows: count, sampled: count, trained: count };
/** By fate ("trained", or why not): sessions, their own tokens and their rewards, summed up. */
const fates = z.record(text, z.object({ sessions: count, tokens: count, reward: value })).optional();
/** A few rollouts by what is remarkable about them: "stop/length", "dropped/stale", "oldest", "longest". */
const examples = z.record(text, z.array(text)).optional();
const funnel = { ...stages, masked: counts, dropped: counts, fates, examples };
const ofProcess = { state: z.enum(["started", "died", "restarted", "removed"]), message: text.optional() };

const runEvent = z.discriminatedUnion("type", [
  z.object({ type: z.literal("started"), version: count, runId: text, recipe: text, command: text, totalSteps }),
  z.object({ type: z.literal("resumed"), fromStep: count, totalSteps }),
  /** The run goes on from a copy of another's step; `changed`: keys that differ. */
  z.object({ type: z.literal("forked"), from: text, step: count, changed: z.array(text) }),
  z.object({
    type: z.literal("phase"),
    name: text,
    state: z.enum(["begin", "end"]),
    seconds: number.optional(),
    detail: text.optional(),
  }),
  z.object({ type: z.literal("arithmetic"), line: text }),
  /** What became of a group, once: `step` is the step that consumed it; a dropped one goes back when `requeued`. */
  z.object({
    type: z.literal("group"),
    ...ofGroup,
    epoch: count,
    outcome: z.enum(["trained", "dropped"]),
    reason: text.optional(),
    requeued: z.boolean().optional(),
    step: count,
    reward: value.optional(),
  }),
  z.object({ type: z.literal("rollout_failed"), ...ofGroup, rolloutId: text, reason: text, message: text }),
  /** `seconds` since the step before, by what they went to. */
  z.object({ type: z.literal("step"), step: count, policyVersion: count, metrics: values, seconds: values.optional() }),
  /** Of the groups that a step consumed or lost, in tokens: sampled = trained + masked + dropped. */
  z.object({ type: z.literal("funnel"), step: count, ...funnel }),
  /** One rollout of a step as text, special tokens included; long texts are cut. What it says is not to be trusted. */
  z.object({ type: z.literal("sample"), step: count, rolloutId: text, reward: value, prompt: text, reply: text }),
  z.object({
    type: z.literal("step_skipped"),
    step: count,
    reason: z.enum(["no_trainable_tokens", "non_finite_gradient"]),
    detail: text,
  }),
  z.object({ type: z.literal("sync"), policyVersion: count, seconds: number, checksum: text, engines: count }),
  z.object({ type: z.literal("eval"), step: count, policyVersion: count, metrics: values }),
  z.object({ type: z.literal("checkpoint"), step: count, directory: text, seconds: number }),
  z.object({ type: z.literal("engine"), engine: count, ...ofProcess, url: text.optional() }),
  z.object({ type: z.literal("worker"), worker: count, ...ofProcess }),
  z.object({ type: z.literal("rank"), rank: count, ...ofProcess }),
  /** A machine of a cluster, with what runs on it. */
  z.object({ type: z.literal("node"), node: count, ...ofProcess }),
  /** A rule of telemetry/health/ that begins to hold: its evidence, and the recipe key most likely at fault. */
  z.object({
    type: z.literal("health"),
    rule: text,
    severity: z.enum(["alarm", "advice"]),
    step: count,
    message: text,
    key: text.optional(),
    rolloutIds: z.array(text),
  }),
  z.object({ type: z.literal("log"), source: text, level: text, message: text }),
  z.object({ type: z.literal("warning"), message: text }),
  z.object({ type: z.literal("failed"), message: text }),
  z.object({ type: z.literal("ended"), state: z.enum(["completed", "failed", "interrupted"]) }),
]);

export type RunEvent = z.infer<typeof runEvent>;

/** Of the log: `time` is seconds since the epoch. */
export const timedEvent = runEvent.and(z.object({ time: number }));
export type TimedEvent = z.infer<typeof timedEvent>;

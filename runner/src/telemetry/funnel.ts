/** What became of all that was sampled for a step, from the stored trajectories. */
import { Mask, type Rollout, type Segment } from "../agents/types.ts";
import type { RunEvent } from "./events.ts";
import type { GroupRecord } from "./shards.ts";

export type Funnel = Required<Omit<Extract<RunEvent, { type: "funnel" }>, "type" | "step">>;

const maskNames = Object.fromEntries(Object.entries(Mask).map(([name, value]) => [value, name]));
const mostExamples = 3;

/**
 * A stage counts what the one before it leaves: sessions that ended, their model calls, turns whose reply reached
 * somebody, rows of groups that were kept, tokens trained. In tokens: sampled = trained + masked + dropped.
 */
export function funnelOf(records: readonly GroupRecord[]): Funnel {
  const stages = { sessions: 0, calls: 0, turns: 0, rows: 0, sampled: 0, trained: 0 };
  const funnel: Funnel = { ...stages, masked: {}, dropped: {}, fates: {}, examples: {} };
  for (const { group, dropped } of records) {
    // Of a batch without a trained token, masks tell why there is none.
    const reason = dropped?.reason === "no_trainable_tokens" ? undefined : dropped?.reason;
    for (const rollout of group.rollouts) addRollout(funnel, rollout, reason);
  }
  addExtremes(funnel.examples, records);
  return funnel;
}

/** The first stage that leaves nothing, in words; null where tokens were trained. */
export function emptyStage({ sessions, calls, turns, rows, trained, masked, dropped }: Funnel): string | null {
  const why = (reasons: Record<string, number>) =>
    Object.entries(reasons)
      .map(([name, n]) => `${name}: ${n}`)
      .join(", ");
  if (sessions === 0) return "sessions: no rollout of the batch came to an end";
  if (calls === 0) return `calls: none of ${sessions} sessions sampled anything`;
  if (turns === 0) return `turns: none of ${calls} replies reached its agent`;
  if (rows === 0) return `rows: all groups were dropped (tokens by reason: ${why(dropped)})`;
  return trained === 0 ? `tokens: ${rows} rows, and each sampled token is masked (${why(masked)})` : null;
}

/** Whether a reply ended for want of room. */
export function isCut(segments: readonly Segment[]): boolean {
  return segments.some(({ turns }) => turns.some(({ stop }) => stop === "length" || stop === "context"));
}

function addRollout(funnel: Funnel, { segments, rolloutId, reward, stop }: Rollout, reason?: string): void {
  const before = funnel.sampled;
  funnel.sessions++;
  for (const segment of segments) addSegment(funnel, segment, reason);
  const fate = reason ?? "trained";
  const { sessions, tokens, reward: sum } = funnel.fates[fate] ?? { sessions: 0, tokens: 0, reward: 0 };
  const sampled = funnel.sampled - before;
  funnel.fates[fate] = { sessions: sessions + 1, tokens: tokens + sampled, reward: sum + reward };
  addExample(funnel.examples, `stop/${stop}`, rolloutId);
  if (isCut(segments)) addExample(funnel.examples, "truncated", rolloutId);
  if (reason !== undefined) addExample(funnel.examples, `dropped/${reason}`, rolloutId);
}

/** What another row holds already is not counted again. */
function addSegment(funnel: Funnel, { mask, turns }: Segment, reason?: string): void {
  const own = turns.filter(({ start }) => mask[start] !== Mask.sharedPrefix);
  const kept = own.filter(({ start }) => mask[start] !== Mask.rejected);
  funnel.calls += own.length;
  funnel.turns += kept.length;
  if (kept.length > 0 && reason === undefined) funnel.rows++;
  for (const { start, end, cut = 0 } of own) {
    funnel.sampled += end - start + cut;
    if (reason !== undefined) add(funnel.dropped, reason, end - start + cut);
    else if (cut > 0) add(funnel.masked, "cut", cut);
    for (let at = start; at < end && reason === undefined; at++) {
      if (mask[at] === Mask.trained) funnel.trained++;
      else add(funnel.masked, maskNames[mask[at]!]!, 1);
    }
  }
}

function add(counts: Record<string, number>, name: string, tokens: number): void {
  counts[name] = (counts[name] ?? 0) + tokens;
}

function addExample(examples: Funnel["examples"], kind: string, rolloutId: string): void {
  const known = examples[kind] ?? [];
  if (known.length < mostExamples) examples[kind] = [...known, rolloutId];
}

function addExtremes(examples: Funnel["examples"], records: readonly GroupRecord[]): void {
  const lengthOf = ({ segments }: Rollout) => segments.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const all = records.flatMap(({ group: { rollouts, admittedVersion } }) =>
    rollouts.map((rollout) => ({ rolloutId: rollout.rolloutId, length: lengthOf(rollout), admittedVersion })),
  );
  const first = () => all.slice(0, mostExamples).map(({ rolloutId }) => rolloutId);
  all.sort((one, other) => other.length - one.length);
  examples.longest = first();
  all.sort((one, other) => one.admittedVersion - other.admittedVersion);
  examples.oldest = first();
}

/** What the inspector shows of rollouts, as values: pure, for the extension, its page and tests. */
import { Mask, type Rollout, type Turn } from "../../runner/src/agents/types.ts";
import type { TrainedValues } from "../../runner/src/telemetry/shards.ts";
import { fixed, visible } from "../../runner/src/telemetry/views/lines.ts";
import type { RolloutPage, RolloutQuery } from "./rollout-index.ts";

/** Of the list. */
export const rowsAPage = 100;

/** Numbers of a token, in nats but for the advantage, and for the age in versions. Edges part shades by magnitude. */
const measures = {
  logprob: { text: "log-probability", edges: [0.1, 0.5, 2, 5], signed: false },
  gap: { text: "log-probability gap (trainer - engine)", edges: [0.01, 0.05, 0.2, 1], signed: true },
  advantage: { text: "advantage", edges: [0, 0.5, 1, 2], signed: true },
  entropy: { text: "entropy", edges: [0.1, 0.5, 1, 2], signed: false },
  age: { text: "policy version (versions before the newest)", edges: [0, 1, 2, 3], signed: false },
};

type Measure = keyof typeof measures;
export type Coloring = "mask" | Measure;

export const colorings = Object.entries({ mask: { text: "mask" }, ...measures }).map(([value, { text }]) => {
  return { value: value as Coloring, text: `color: ${text}` };
});

/** Arrays have one value a token; of `values`, NaN where there is none. */
export interface ShownSegment extends Pick<Rollout["segments"][number], "tokens" | "mask" | "versions" | "turns"> {
  values: Record<Measure, Float32Array>;
  /** Null where nobody could decode them. */
  texts: string[] | null;
}

export interface ShownRollout extends Omit<Rollout, "segments"> {
  segments: ShownSegment[];
}

/** One rollout, or a group's. */
export interface Shown {
  id: string;
  step: number;
  dropped: string | null;
  rollouts: ShownRollout[];
  /** Ids of special tokens. */
  special: number[];
  /** Why there are no texts. */
  why: string | null;
}

/** Copies: what is stored shares its memory with all of its group. `texts` by segment. */
export function shownRollout(
  rollout: Rollout,
  trained: Record<string, TrainedValues>,
  texts?: string[][],
): ShownRollout {
  const newest = rollout.segments.reduce((most, { versions }) => versions.reduce((a, b) => Math.max(a, b), most), 0);
  const segments = rollout.segments.map(({ tokens, mask, versions, logprobs, turns }, leaf): ShownSegment => {
    const values = trained[`${rollout.rolloutId}/${leaf}`];
    const trainer = spread(mask, values?.logprobs);
    const copies = { tokens: tokens.slice(), mask: mask.slice(), versions: versions.slice() };
    return {
      ...{ ...copies, turns, texts: texts?.[leaf] ?? null },
      values: {
        logprob: logprobs.slice(),
        gap: trainer.map((value, t) => value - logprobs[t]!),
        advantage: spread(mask, values?.advantages),
        entropy: spread(mask, values?.entropy),
        age: Float32Array.from(versions, (version) => (version < 0 ? NaN : newest - version)),
      },
    };
  });
  return { ...rollout, segments };
}

/** The first token of a row is never trained: nothing predicts it. */
function spread(mask: Uint8Array, values: Float32Array | undefined): Float32Array {
  let next = 0;
  return Float32Array.from(mask, (value, t) => (t > 0 && value === Mask.trained ? (values?.[next++] ?? NaN) : NaN));
}

/** A turn's tokens, or those that lie between turns; turns count from 1. */
export interface Block {
  name: string;
  start: number;
  end: number;
  turn?: Turn;
}

export function blocksOf({ tokens, turns }: ShownSegment): Block[] {
  const context = (start: number, end: number) => (start < end ? [{ name: "Context", start, end }] : []);
  const blocks = turns.flatMap((turn, index): Block[] => {
    const { start, end } = turn;
    return [...context(turns[index - 1]?.end ?? 0, start), { name: `Turn ${index + 1}`, start, end, turn }];
  });
  return [...blocks, ...context(turns.at(-1)?.end ?? 0, tokens.length)];
}

const maskWords = Object.entries({
  context: "context",
  trained: "trained",
  sharedPrefix: "trained in another row",
  rejected: "rejected: it reached nobody",
  stale: "too old to train",
  truncated: "cut off",
} satisfies Record<keyof typeof Mask, string>);

/** How tokens look: an entry of the legend each, -1 for those of which nothing is known. */
export interface Scale {
  entries: { style: string; label: string }[];
  entryOf(segment: ShownSegment, t: number): number;
}

export function scaleOf(coloring: Coloring): Scale {
  if (coloring === "mask") {
    const entries = maskWords.map(([name, label]) => ({ style: `mask-${name}`, label }));
    return { entries, entryOf: ({ mask }, t) => mask[t]! };
  }
  const { edges, signed } = measures[coloring];
  const range = (low: number, high: number) => (low === high ? String(low) : `${low} to ${high}`);
  const labels = [...edges.map((edge, level) => range(edges[level - 1] ?? 0, edge)), `over ${edges.at(-1)}`];
  const entries = labels.map((label, level) => ({ style: `level-${level}`, label }));
  const below = entries.map(({ style, label }) => ({ style: `${style} below`, label: `below 0: ${label}` }));
  return {
    entries: [...entries, ...below],
    entryOf({ values }, t) {
      const value = values[coloring][t]!;
      if (Number.isNaN(value)) return -1;
      const level = edges.filter((edge) => Math.abs(value) > edge).length;
      return signed && value < 0 ? level + entries.length : level;
    },
  };
}

/** What a token says, on one line, without anything that moves text or is not seen; without a text its id. */
export function tokenText({ tokens, texts }: ShownSegment, t: number): string {
  const shown = visible(texts?.[t] || `[${tokens[t]}]`)
    .replaceAll("\n", "⏎")
    .replaceAll("\t", "⇥");
  return shown.trim() === "" ? "·".repeat(shown.length) : shown;
}

/** All that is known of a token, in words and numbers. */
export function tokenFacts(segment: ShownSegment, t: number, special: readonly number[]): Record<string, string> {
  const { tokens, mask, values, versions } = segment;
  const number = (measure: Measure) => (Number.isNaN(values[measure][t]) ? "-" : values[measure][t]!.toFixed(4));
  return {
    token: String(t),
    id: `${tokens[t]}${special.includes(tokens[t]!) ? " (special)" : ""}`,
    text: tokenText(segment, t),
    mask: maskWords[mask[t]!]?.[1] ?? String(mask[t]),
    ...{ "log-probability": number("logprob"), gap: number("gap") },
    ...{ advantage: number("advantage"), entropy: number("entropy") },
    version: versions[t]! < 0 ? "-" : String(versions[t]),
  };
}

export function rolloutFacts({ step, dropped }: Shown, rollout: ShownRollout): Record<string, string> {
  const { reward, score, stop, attempt, info, timings, segments } = rollout;
  const given = new Set(segments.flatMap(({ values }) => [...values.advantage]));
  given.delete(Number.NaN);
  const advantages = [...given].slice(0, 3).map(fixed).join(", ");
  const numbers = Object.entries(info).map(([name, value]) => [`info ${visible(name)}`, fixed(value)]);
  return {
    ...{ reward: fixed(reward), score: fixed(score) },
    advantage: given.size === 0 ? "not stored" : given.size > 3 ? `${advantages}, …` : advantages,
    ...{ stop, dropped: dropped ?? "no", step: String(step), attempt: String(attempt) },
    began: new Date(timings.startedAt * 1000).toISOString(),
    seconds: `${timings.seconds.toFixed(2)}, ${timings.modelSeconds.toFixed(2)} of them in model calls`,
    ...Object.fromEntries(numbers),
  };
}

/** `0..0.5`, `1..`, `..3` or one number; anything else filters nothing. */
export function parseRange(text: string): [number, number] | undefined {
  const [low, high = low] = text.split("..").map((word) => word.trim());
  const bounds: [number, number] = [Number(low || -Number.MAX_VALUE), Number(high || Number.MAX_VALUE)];
  return text.trim() === "" || bounds.some(Number.isNaN) ? undefined : bounds;
}

export function rangeText(range: [number, number] | undefined): string {
  const [low, high] = (range ?? []).map((bound) => (Math.abs(bound) === Number.MAX_VALUE ? "" : String(bound)));
  return range === undefined || low === high ? (low ?? "") : `${low}..${high}`;
}

export type ToInspector =
  /** `isNews`: the same list, of which a run at work has stored more. */
  | ({ type: "list"; isNews: boolean } & RolloutPage)
  | { type: "shown"; shown: Shown }
  /** Of the rollout or the group, or of the list, that was asked for. */
  | { type: "problem"; id: string | null; message: string }
  /** What a command asks for: a rollout, a group, or the list of those that fit. */
  | { type: "go"; directory: string; id: string | null; query: Partial<RolloutQuery> };

export type FromInspector =
  | { type: "ready" }
  /** `anew`: with what was stored since. */
  | { type: "list"; query: RolloutQuery; anew: boolean }
  | { type: "open"; id: string }
  | { type: "source"; place: string };

/** What the page keeps while it is hidden. */
export interface InspectorState {
  directory: string;
  query: RolloutQuery;
  /** Of the rollout or the group that is shown instead of the list. */
  id: string | null;
  coloring: Coloring;
  asTable: boolean;
  /** Of its tokens, from 0. */
  tokenPage: number;
}

import { Mask, type Rollout, type Segment } from "../../agents/types.ts";
import type { StoredGroup } from "../shards.ts";
import { fixed, quoted, table, visible } from "./lines.ts";

export type RolloutRow = ReturnType<typeof rolloutRows>[number];

/** What a row must be; bounds are included. */
export interface RolloutFilter extends Partial<Pick<RolloutRow, "stop" | "dropped" | "group">> {
  reward?: [low: number, high: number];
  tokens?: [low: number, high: number];
}

/** A group's rollouts in a line each; `tokens` of all segments, context included; `dropped`: why none was trained. */
export function rolloutRows({ step, group, dropped }: StoredGroup) {
  const made = group.rollouts.map(({ rolloutId, reward, stop, segments }) => {
    const count = (of: (segment: Segment) => number) => segments.reduce((sum, segment) => sum + of(segment), 0);
    const trained = dropped ? 0 : count(({ mask }) => mask.filter((value) => value === Mask.trained).length);
    const [turns, tokens] = [count((segment) => segment.turns.length), count((segment) => segment.tokens.length)];
    return { rollout: rolloutId, reward, stop, turns, tokens, trained, dropped: dropped?.reason ?? null };
  });
  const failed = group.failed.map(({ rolloutId, reason }) => {
    return { rollout: rolloutId, reward: null, stop: "infra", turns: 0, tokens: 0, trained: 0, dropped: reason };
  });
  return [...made, ...failed].map((row) => ({ ...row, group: group.groupId, step }));
}

export function isShown(row: RolloutRow, { reward, tokens, ...equal }: RolloutFilter): boolean {
  const within = (value: number | null, [low, high] = [-Infinity, Infinity]) =>
    value !== null && value >= low && value <= high;
  const same = Object.entries(equal).every(([name, value]) => value === undefined || row[name as "stop"] === value);
  return same && (reward === undefined || within(row.reward, reward)) && within(row.tokens, tokens);
}

export function rolloutTable(rows: RolloutRow[]): string {
  const names = ["rollout", "step", "reward", "stop", "turns", "tokens", "trained", "dropped"] as const;
  const cells = rows.map((row) =>
    names.map((name) => (name === "reward" ? fixed(row.reward) : String(row[name] ?? "-"))),
  );
  return table([[...names], ...cells]);
}

const maskNames = Object.keys(Mask);

/** A rollout by turns and tokens; `texts`: what each segment's tokens say, special ones too. */
export function rolloutText({ rolloutId, reward, stop, segments }: Rollout, texts: string[][]): string {
  const head = `rollout ${quoted(rolloutId)}, reward ${fixed(reward)}, stop ${stop}`;
  return [head, ...segments.flatMap((segment, at) => segmentLines(segment, texts[at]!))].join("\n");
}

function segmentLines({ turns, tokens, mask, logprobs, versions }: Segment, texts: string[]): string[] {
  const context = (start: number, end: number) =>
    start < end ? [`  context [${start}, ${end})  ${quoted(texts.slice(start, end).join(""))}`] : [];
  const token = (at: number) =>
    `    ${at}  ${maskNames[mask[at]!]}  ${logprobs[at]!.toFixed(4)}  v${versions[at]}  ${quoted(texts[at]!)}`;
  const lines = turns.flatMap(({ start, end, stop, temperature, source = "" }, turn) => [
    ...context(turns[turn - 1]?.end ?? 0, start),
    visible(`  turn ${turn + 1} [${start}, ${end})  stop ${stop}, temperature ${temperature}  ${source}`),
    ...texts.slice(start, end).map((_, offset) => token(start + offset)),
  ]);
  return [`segment of ${tokens.length} tokens`, ...lines, ...context(turns.at(-1)?.end ?? 0, tokens.length)];
}

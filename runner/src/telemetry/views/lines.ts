import type { TimedEvent } from "../events.ts";

/** What an event says, for a terminal. What models and agents wrote in it moves no cursor and forges no line. */
export function eventLine(event: TimedEvent): string {
  return plain((said[event.type] as (event: TimedEvent) => string)(event));
}

type EventOf<T extends TimedEvent["type"]> = Extract<TimedEvent, { type: T }>;

const said: { [T in TimedEvent["type"]]: (event: EventOf<T>) => string } = {
  started: ({ runId }) => `run ${runId}`,
  resumed: ({ fromStep, totalSteps }) => `resuming at ${fromStep} of ${totalSteps ?? "?"}`,
  forked: ({ from, step, changed }) => `forked from ${from} at step ${step}${suffix(changed.join(", "))}`,
  arithmetic: ({ line }) => line,
  phase: ({ name, state, seconds = 0, detail }) =>
    state === "begin" ? `${name} begins` : `${name}: ${seconds.toFixed(1)} s${suffix(detail)}`,
  group: ({ groupId, outcome, step, reason, requeued, reward }) =>
    `group ${groupId} ${outcome} at step ${step}${suffix(reason)}${requeued ? ", its prompt goes back" : ""}` +
    (reward === undefined ? "" : `, reward ${fixed(reward)}`),
  rollout_failed: ({ rolloutId, reason, message }) => `rollout ${rolloutId} failed (${reason}): ${message}`,
  step: ({ step, metrics }) => `step ${step}  ${stepNote(metrics)}`,
  funnel: ({ step, sampled, trained, masked, dropped }) => {
    const parts = Object.entries({ trained, ...masked, ...dropped }).map(([name, count]) => `${count} ${name}`);
    return `tokens of step ${step}: ${sampled} sampled = ${parts.join(" + ")}`;
  },
  sample: ({ step, reward, prompt, reply }) =>
    `sample of step ${step}, reward ${fixed(reward)}: ${quoted(prompt)} → ${quoted(reply)}`,
  step_skipped: ({ step, reason, detail }) => `step ${step} changed nothing (${reason}): ${detail}`,
  sync: ({ policyVersion, engines, seconds }) =>
    `version ${policyVersion} on ${engines} ${engines === 1 ? "engine" : "engines"} in ${seconds.toFixed(2)} s`,
  eval: ({ step, metrics }) => {
    const { accuracy = Number.NaN, loss, perplexity } = metrics;
    if (loss !== undefined)
      return `eval at step ${step}: held-out loss ${fixed(loss)}, perplexity ${fixed(perplexity)}`;
    const more = Object.entries(metrics).filter(([name]) => /^(sampled|pass@\d+)$/.test(name));
    const shares = [["held-out accuracy", accuracy] as const, ...more];
    return `eval at step ${step}: ${shares.map(([name, value]) => `${name} ${percent(value)}`).join(", ")}`;
  },
  checkpoint: ({ step, seconds, directory }) => `checkpoint of step ${step} in ${seconds.toFixed(1)} s: ${directory}`,
  engine: ({ engine, state, message }) => `engine ${engine} ${state}${because(message)}`,
  worker: ({ worker, state, message }) => `worker ${worker} ${state}${because(message)}`,
  node: ({ node, state, message }) => `node ${node} ${state}${because(message)}`,
  rank: ({ rank, state, message }) => `rank ${rank} ${state}${because(message)}`,
  health: ({ severity, step, rule, message, key }) => `${severity} at step ${step}, ${rule}: ${message}${suffix(key)}`,
  log: ({ source, level, message }) => `${source} ${level}: ${message}`,
  warning: ({ message }) => `warning: ${message}`,
  failed: ({ message }) => `failed: ${message}`,
  ended: ({ state }) => state,
};

/** On one line, in quotes. */
export function quoted(text: string): string {
  return visible(JSON.stringify(text));
}

/** Visible, and its lines after the first set in. */
const plain = (text: string) => visible(text).replace(/\n(?! )/g, "\n    ");

/** Text with what moves a cursor, or turns text around, shown by its number. */
export function visible(text: string): string {
  return text.replace(/[^\P{C}\n\t]/gu, (character) => `\\u{${character.codePointAt(0)!.toString(16)}}`);
}

export function stepNote(metrics: Record<string, number>): string {
  const { reward, turns, loss, entropy, logprob_gap_mean: gap, staleness_mean: staleness } = metrics;
  const noted = Object.entries({ reward, turns: turns === 1 ? undefined : turns, loss, entropy, gap, staleness });
  return noted.flatMap(([name, value]) => (value === undefined ? [] : `${name} ${fixed(value)}`)).join("  ");
}

const suffix = (detail: string | undefined) => (detail ? ` (${detail})` : "");
const because = (message: string | undefined) => (message ? `: ${message}` : "");

export function percent(share: number): string {
  return `${(share * 100).toFixed(1)}%`;
}

export function fixed(value: number | null | undefined): string {
  if (value === undefined || value === null) return "-";
  return Math.abs(value) < 0.001 && value !== 0 ? value.toExponential(1) : value.toFixed(3);
}

/** Columns side by side, the first row their names. */
export function table(rows: string[][]): string {
  const lines = rows.map((row) => row.map((cell) => visible(cell).replaceAll("\n", " ")));
  const widths = lines[0]!.map((_, column) => lines.reduce((most, row) => Math.max(most, row[column]!.length), 0));
  const lineOf = (row: string[]) => row.map((cell, at) => cell.padEnd(widths[at]!)).join("  ");
  return lines.map((row) => lineOf(row).trimEnd()).join("\n");
}

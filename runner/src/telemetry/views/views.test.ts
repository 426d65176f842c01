import { mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Group, Mask, type Rollout } from "../../agents/types.ts";
import { curveSvg } from "../curve.ts";
import type { RunEvent } from "../events.ts";
import { foldRun } from "../fold.ts";
import { EventLog } from "../log.ts";
import { eventLine, quoted, table, visible } from "./lines.ts";
import { reportHtml } from "./report.ts";
import { isShown, rolloutRows, rolloutTable, rolloutText } from "./rollouts.ts";
import { runRows, runTable } from "./runs.ts";
import { watchScreen } from "./screen.ts";

const started: RunEvent = { type: "started", version: 1, runId: "r", recipe: "x", command: "run", totalSteps: 3 };
const stepTo = (step: number, metrics: Record<string, number>): RunEvent => ({
  type: "step",
  step,
  policyVersion: step,
  metrics,
});
const timed = (events: RunEvent[]) => events.map((event, index) => ({ time: 1764460800 + index, ...event }));
const lineOf = (event: RunEvent) => eventLine({ time: 0, ...event });

/** Clears the screen, sets the title, reverses text, forges a line; and what HTML would run. */
const hostile = '\x1b[2J\x1b]0;pwned\x07\x9b31m\u202egnp.exe\r\n2026 alarm: </pre><script>alert(1)</script>" onload="x';
const moves = (text: string) =>
  [...text].some((character) => {
    const code = character.codePointAt(0)!;
    const isControl = (code < 32 && code !== 9 && code !== 10) || (code >= 127 && code < 160);
    return isControl || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  });

describe("lines of events", () => {
  test.each<[RunEvent, string]>([
    [{ type: "engine", engine: 1, state: "died", message: "killed by SIGKILL" }, "engine 1 died: killed by SIGKILL"],
    [{ type: "worker", worker: 0, state: "restarted" }, "worker 0 restarted"],
    [{ type: "rank", rank: 2, state: "died", message: "gone" }, "rank 2 died: gone"],
    [{ type: "forked", from: "a", step: 3, changed: ["run.seed"] }, "forked from a at step 3 (run.seed)"],
    [
      {
        ...{ type: "health", rule: "entropy", severity: "alarm", step: 4, message: "it fell to 0.01" },
        ...{ key: "algo.entropy_coef", rolloutIds: [] },
      },
      "alarm at step 4, entropy: it fell to 0.01 (algo.entropy_coef)",
    ],
    [
      {
        ...{ type: "funnel", step: 1, sessions: 2, calls: 2, turns: 2, rows: 2, sampled: 9, trained: 5 },
        ...{ masked: { stale: 1 }, dropped: { no_signal: 3 } },
      },
      "tokens of step 1: 9 sampled = 5 trained + 1 stale + 3 no_signal",
    ],
    [{ type: "log", source: "engine 0", level: "error", message: "no room" }, "engine 0 error: no room"],
    [{ type: "ended", state: "failed" }, "failed"],
  ])("%j", (event, line) => expect(lineOf(event)).toBe(line));

  test("text of models and agents moves no cursor, turns nothing around and forges no line", () => {
    const events: RunEvent[] = [
      { type: "sample", step: 1, rolloutId: "x", reward: 0, prompt: hostile, reply: hostile },
      {
        type: "rollout_failed",
        promptId: "p",
        groupId: "g",
        rolloutId: "x",
        attempt: 0,
        reason: "a",
        message: hostile,
      },
      { type: "warning", message: hostile },
      { type: "engine", engine: 0, state: "died", message: hostile },
      { type: "health", rule: "r", severity: "alarm", step: 1, message: hostile, rolloutIds: [] },
    ];
    for (const event of events) {
      const shown = lineOf(event);
      expect(moves(shown)).toBe(false);
      for (const line of shown.split("\n").slice(1)) expect(line).toMatch(/^ /);
    }
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        for (const shown of [visible(text), quoted(text), table([[text]])]) expect(moves(shown)).toBe(false);
        expect(quoted(text) + table([[text]])).not.toContain("\n");
      }),
    );
  });
});

describe("rollouts", () => {
  const nan = Number.NaN;
  const rollout = (rolloutId: string, reward: number, tokens: number[], sampled: number): Rollout => ({
    ...{ runId: "r", promptId: "p", groupId: "g", rolloutId, attempt: 0, reward, score: reward, info: {} },
    stop: "env_done",
    timings: { startedAt: 0, seconds: 0, modelSeconds: 0 },
    segments: [
      {
        tokens: Int32Array.from(tokens),
        mask: Uint8Array.from(tokens, (_, at) => (at < sampled ? Mask.context : at === 2 ? Mask.stale : Mask.trained)),
        logprobs: Float32Array.from(tokens, (_, at) => (at < sampled ? nan : -0.25 * at)),
        versions: Int32Array.from(tokens, (_, at) => (at < sampled ? -1 : 7)),
        turns: [
          { start: sampled, end: tokens.length - 1, callId: "c", stop: "stop", temperature: 1, source: "agent.ts:4" },
        ],
      },
    ],
  });
  const failed = {
    runId: "r",
    promptId: "p",
    groupId: "g",
    rolloutId: "g/2",
    attempt: 0,
    reason: "engine" as const,
    message: "m",
  };
  const group: Group = {
    ...{ groupId: "g", promptId: "p", epoch: 0, admittedVersion: 0, attempt: 0 },
    rollouts: [rollout("g/0", 1, [5, 6, 7, 8, 9], 1), rollout("g/1", 0.25, [5, 6, 7], 1)],
    failed: [failed],
  };

  test("are listed with what was trained of them, or why nothing was", () => {
    const rows = rolloutRows({ step: 3, group });
    expect(rolloutTable(rows).split("\n")).toEqual([
      "rollout  step  reward  stop      turns  tokens  trained  dropped",
      "g/0      3     1.000   env_done  1      5       3        -",
      "g/1      3     0.250   env_done  1      3       1        -",
      "g/2      3     -       infra     0      0       0        engine",
    ]);
    const dropped = rolloutRows({ step: 3, group, dropped: { reason: "no_signal" } });
    expect(dropped.map((row) => [row.trained, row.dropped])).toEqual([
      [0, "no_signal"],
      [0, "no_signal"],
      [0, "engine"],
    ]);
  });

  test.each<[Parameters<typeof isShown>[1], string[]]>([
    [{}, ["g/0", "g/1", "g/2"]],
    [{ reward: [0.25, 0.5] }, ["g/1"]],
    [{ tokens: [5, 9] }, ["g/0"]],
    [{ stop: "env_done" }, ["g/0", "g/1"]],
    [{ dropped: "engine" }, ["g/2"]],
    [{ group: "other" }, []],
    [{ group: "g", reward: [1, 1], stop: undefined }, ["g/0"]],
  ])("are filtered by %j", (filter, ids) => {
    const rows = rolloutRows({ step: 3, group }).filter((row) => isShown(row, filter));
    expect(rows.map((row) => row.rollout)).toEqual(ids);
  });

  test("of a long run are listed too", () => {
    const rows = Array(200_000).fill(rolloutRows({ step: 3, group })[0]!);
    expect(rolloutTable(rows).length).toBeGreaterThan(200_000 * 50);
  });

  test("one is shown by turns and tokens: mask, log-probability, version; special tokens and escapes visible", () => {
    const texts = [["<bos>", "a", "\x1b[2J", "\n", "<end>"]];
    expect(rolloutText(group.rollouts[0]!, texts).split("\n")).toEqual([
      'rollout "g/0", reward 1.000, stop env_done',
      "segment of 5 tokens",
      '  context [0, 1)  "<bos>"',
      "  turn 1 [1, 4)  stop stop, temperature 1  agent.ts:4",
      '    1  trained  -0.2500  v7  "a"',
      '    2  stale  -0.5000  v7  "\\u001b[2J"',
      '    3  trained  -0.7500  v7  "\\n"',
      '  context [4, 5)  "<end>"',
    ]);
  });
});

describe("runs", () => {
  let root = "";
  beforeAll(() => {
    root = mkdtempSync(join(tmpdir(), "views-"));
    const write = (id: string, seconds: number, events: RunEvent[]) => {
      mkdirSync(join(root, id));
      const log = new EventLog(join(root, id, "events.ndjson"));
      for (const event of events) log.emit(event);
      log.flush();
      utimesSync(join(root, id, "events.ndjson"), seconds, seconds);
    };
    const evaluated: RunEvent = { type: "eval", step: 2, policyVersion: 2, metrics: { accuracy: 0.5 } };
    write("old", 60, [started, stepTo(2, { reward: 0.25 }), evaluated, { type: "ended", state: "completed" }]);
    write("killed", 7200, [started, stepTo(1, {})]);
  });
  afterAll(() => rmSync(root, { recursive: true }));

  test("one whose log cannot be read hides no other", () => {
    const log = join(root, "killed", "events.ndjson");
    const written = readFileSync(log);
    writeFileSync(log, '{"type": "of a later version"}\n');
    expect(runRows(root).map(({ id, state }) => [id, state])).toEqual([
      ["killed", "unreadable"],
      ["old", "completed"],
    ]);
    writeFileSync(log, written);
    utimesSync(log, 7200, 7200);
  });

  test("are listed with state, step, reward, eval and age; one whose process is gone has died", () => {
    expect(runTable(runRows(root), 3 * 3600 * 1000).split("\n")).toEqual([
      "run     state      step  reward  eval   age",
      "killed  died       1/3   -       -      60 min",
      "old     completed  2/3   0.250   0.500  3 h",
    ]);
  });
});

test("watch draws each figure over its own range, and leaves out what there is none of", () => {
  const events = [0, 0.5, 1].map((reward, index) => stepTo(index + 1, { reward, logprob_gap_mean: 2e-5 * reward }));
  expect(moves(watchScreen(foldRun(timed([{ ...started, runId: hostile }])), 80))).toBe(false);
  expect(watchScreen(foldRun(timed([started, ...events])), 80).split("\n")).toEqual([
    "run r  running  step 3/3",
    "",
    "reward               ▁▅█  0.000 to 1.000, now 1.000",
    "log-probability gap  ▁▅█  0.000 to 2.0e-5, now 2.0e-5",
    "seconds a step       ▁▁  1.000 to 1.000, now 1.000",
  ]);
});

describe("the report", () => {
  const sample: RunEvent = {
    ...{ type: "sample", step: 1, rolloutId: "x", reward: 0 },
    ...{ prompt: `private question ${hostile}`, reply: "r" },
  };
  const events = timed([
    started,
    stepTo(1, { reward: 0.5, [hostile]: 1 }),
    stepTo(2, { reward: 1, [hostile]: 2 }),
    sample,
    { type: "warning", message: hostile },
    { type: "health", rule: "entropy", severity: "alarm", step: 2, message: "fell", rolloutIds: [] },
  ]);
  const page = reportHtml(events, `run: { name: "${hostile}" }`, false);

  test("holds charts, alarms, events and the recipe, and fetches nothing", () => {
    expect(page).toContain("alarm at step 2, entropy: fell");
    expect(page.match(/<svg /g)).toHaveLength(3);
    const withoutNamespace = page.replaceAll("http://www.w3.org/2000/svg", "");
    expect(withoutNamespace).not.toMatch(/https?:|<(script|img|link|iframe)|@import|url\(/i);
    expect(page).toContain("default-src 'none'");
  });

  test("what models and agents wrote is text in it", () => {
    expect(page).not.toContain("<script");
    expect(moves(page)).toBe(false);
    expect(page).not.toMatch(/<[^>]*onload=/);
    expect(page).toContain("&#60;script&#62;");
  });

  test("prompts are in it on demand alone", () => {
    expect(page).not.toContain("private question");
    expect(reportHtml(events, "", true)).toContain("private question");
  });
});

test("a curve through one step, or of equal values, has numbers only", () => {
  for (const run of [[], [stepTo(1, { reward: 0.5 })], [stepTo(1, { reward: 1 }), stepTo(2, { reward: 1 })]]) {
    expect(curveSvg(foldRun(timed([started, ...run])))).not.toMatch(/NaN|Infinity/);
  }
});

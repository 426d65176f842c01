import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { RunEvent } from "./events.ts";
import { foldRun } from "./fold.ts";
import { summarize } from "./summary.ts";
import { TerminalReporter } from "./terminal.ts";

/** The little of a terminal that a bar uses: what its reader sees in the end. */
class Screen {
  private readonly rows: (string | undefined)[] = [];
  private row = 0;
  private column = 0;
  private saved = { row: 0, column: 0 };

  write(text: string): boolean {
    const parts = text.replaceAll("\x1b", "␛").matchAll(/␛[78]|␛\[[?\d;]*[A-Za-z]|[^␛]/gu);
    for (const [part] of parts) this.take(part);
    return true;
  }

  get lines(): string[] {
    return Array.from(this.rows, (row) => (row ?? "").trimEnd());
  }

  private take(part: string): void {
    const { row, column } = this;
    if (part === "␛7") this.saved = { row, column };
    else if (part === "␛8") Object.assign(this, this.saved);
    else if (part === "\r") this.column = 0;
    else if (part === "\n") Object.assign(this, { row: row + 1, column: 0 });
    else if (/^␛\[\d*G$/.test(part)) this.column = Number(part.slice(2, -1) || 1) - 1;
    else if (/^␛\[0?K$/.test(part)) this.rows[row] = (this.rows[row] ?? "").slice(0, column);
    else if (!part.startsWith("␛")) {
      const old = (this.rows[row] ?? "").padEnd(column);
      this.rows[row] = old.slice(0, column) + part + old.slice(column + 1);
      this.column++;
    }
  }
}

const { isTTY } = process.stderr;
let screen: Screen;
beforeEach(() => {
  screen = new Screen();
  process.stderr.isTTY = true;
  const write = (text: string | Uint8Array) => screen.write(String(text));
  for (const stream of [process.stdout, process.stderr]) vi.spyOn(stream, "write").mockImplementation(write);
});
afterEach(() => {
  vi.restoreAllMocks();
  process.stderr.isTTY = isTTY;
});

const evalAt = (step: number, accuracy: number): RunEvent => ({
  type: "eval",
  step,
  policyVersion: step,
  metrics: { accuracy },
});
const stepTo = (step: number, reward: number): RunEvent => ({
  type: "step",
  step,
  policyVersion: step,
  metrics: { reward },
});
const events: RunEvent[] = [
  { type: "started", version: 1, runId: "r", recipe: "x.yaml", command: "run", totalSteps: 2 },
  evalAt(0, 0.25),
  stepTo(1, 0.5),
  evalAt(1, 0.5),
  stepTo(2, 1),
  evalAt(2, 0.75),
  { type: "ended", state: "completed" },
];

test("on a terminal every line stays, in order, and the bar is whole below them", () => {
  const timed = events.map((event, index) => ({ time: index, ...event }));
  const reporter = new TerminalReporter({ json: false });
  for (const event of timed) reporter.show(event);
  const run = foldRun(timed);
  reporter.finish(summarize(run), run, `${process.cwd()}/runs/r`, ["molt-runner serve --model m"]);
  expect(screen.lines).toEqual([
    "run r",
    "eval at step 0: held-out accuracy 25.0%",
    "eval at step 1: held-out accuracy 50.0%",
    "eval at step 2: held-out accuracy 75.0%",
    expect.stringMatching(/^█{40} step 2\/2 {2}reward 1.000$/),
    "",
    "held-out accuracy ▃▅▆  25.0% → 75.0%",
    "training reward   ▅█  0.500 → 1.000",
    "completed: 2 steps in 6 s, run directory runs/r",
    "try next:",
    "  molt-runner serve --model m",
  ]);
});

test("what happens to engines, workers and ranks is a line each, health too; the end says where the time went", () => {
  const said: RunEvent[] = [
    { type: "engine", engine: 0, state: "started", url: "http://127.0.0.1:1" },
    { type: "engine", engine: 0, state: "died", message: "engine 0 was killed by SIGKILL" },
    { type: "engine", engine: 0, state: "restarted" },
    { type: "worker", worker: 1, state: "died" },
    { type: "rank", rank: 1, state: "died", message: "rank 1 ended with exit code 1" },
    { type: "forked", from: "r0", step: 4, changed: ["run.seed"] },
    { type: "health", rule: "truncated", severity: "advice", step: 1, message: "half are cut", rolloutIds: ["a/0"] },
    { type: "group", groupId: "a", promptId: "p", epoch: 0, attempt: 0, outcome: "dropped", reason: "stale", step: 1 },
    { ...stepTo(1, 0.5), seconds: { step: 3, wait: 2, train: 1, model: 9, agent: 1 } } as RunEvent,
    { type: "ended", state: "completed" },
  ];
  process.stderr.isTTY = false;
  const timed = said.map((event, index) => ({ time: index, ...event }));
  const reporter = new TerminalReporter({ json: false });
  for (const event of timed) reporter.show(event);
  const run = foldRun(timed);
  reporter.finish(summarize(run), run, `${process.cwd()}/runs/r`, []);
  expect(screen.lines).toEqual([
    "engine 0 died: engine 0 was killed by SIGKILL",
    "engine 0 restarted",
    "worker 1 died",
    "rank 1 died: rank 1 ended with exit code 1",
    "forked from r0 at step 4 (run.seed)",
    "advice at step 1, truncated: half are cut",
    "step 1/?  reward 0.500",
    "",
    "time of its steps  wait 2.0 s, train 1.0 s: bound by engine",
    "completed: 1 steps in 9 s, run directory runs/r",
  ]);
});

test("a sample stays on its line: what moves the cursor or turns text around is shown by its number", () => {
  const reply = `get b<end>\n\x1b[2J\x9b1A\u202eabc "d" Zürich 😀`;
  const event: RunEvent = { type: "sample", step: 4, rolloutId: "a/0", reward: 1, prompt: "find\tb", reply };
  const reporter = new TerminalReporter({ json: false });
  reporter.show({ time: 0, ...event });
  const shown = String.raw`"get b<end>\n\u001b[2J\u{9b}1A\u{202e}abc \"d\" Zürich 😀"`;
  expect(vi.mocked(process.stdout.write).mock.calls).toEqual([
    [`sample of step 4, reward 1.000: "find\\tb" → ${shown}\n`],
  ]);
});

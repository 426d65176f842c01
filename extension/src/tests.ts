import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import type { CancellationToken, TestController, TestItem, TestRun, TestRunRequest } from "vscode";
import { debug, Location, Range, TestMessage, TestRunProfileKind, tests, Uri, workspace } from "vscode";
import { messageOf } from "../../runner/src/errors.ts";
import { readRecipe } from "../../runner/src/recipe/load.ts";
import { visible } from "../../runner/src/telemetry/views/lines.ts";
import { debugConfiguration } from "./debug-configuration.ts";
import { runnerFor, runVerb } from "./runner.ts";
import type { Services } from "./services.ts";

/** A line of `rescore --json`; `after` is null where the grader failed. */
type Rescored = { step: number; rolloutId: string; before: number; after: number | null; message?: string };

/** Of one run; those whose reward is another come first. */
const mostListed = 1000;
const rescoreSeconds = 600;

/** Reward functions as tests: an agent's `grade` over the stored rollouts of each run that it was the agent of. */
export function registerTests({ runs, context }: Services): void {
  const controller = tests.createTestController("molt.rewards", "Rewards of stored rollouts");
  const list = () => listTests(controller, runs.entries);
  const profile = (name: string, kind: TestRunProfileKind, act: Act) =>
    controller.createRunProfile(name, kind, (request, token) => runTests(controller, request, token, act), true);
  profile("Rescore", TestRunProfileKind.Run, rescore);
  profile("Debug", TestRunProfileKind.Debug, debugGrader);
  controller.refreshHandler = list;
  context.subscriptions.push(controller, runs.onDidChange(list));
}

async function listTests(controller: TestController, entries: Services["runs"]["entries"]): Promise<void> {
  for (const [known] of controller.items) {
    if (!entries.some(({ directory }) => directory === known)) controller.items.delete(known);
  }
  for (const { id, directory } of entries) {
    const grader = controller.items.get(directory) ? null : await graderOf(directory);
    if (!grader) continue;
    const item = controller.createTestItem(directory, `${basename(grader.file)} on ${id}`, Uri.file(grader.file));
    item.range = grader.range;
    controller.items.add(item);
  }
}

/** Where the agent of a run exports `grade`: parsed, never executed. Null without one that can be read. */
async function graderOf(directory: string): Promise<{ file: string; range: Range } | null> {
  // The parser is loaded with the first run, not with the extension.
  const { recordOf } = await import("../../runner/src/code/record.ts");
  try {
    const file = readRecipe(join(directory, "recipe.yaml"), {}).recipe.train.agent_path ?? "";
    const { symbols } = recordOf(readFileSync(file, "utf8"), file);
    const { line, character, name } = symbols.find(({ name, exported }) => exported && name === "grade")!;
    return { file, range: new Range(line, character, line, character + name.length) };
  } catch {
    return null;
  }
}

type Act = (item: TestItem, run: TestRun, token: CancellationToken, controller: TestController) => unknown;

/** A rollout stands for all of its run. */
async function runTests(controller: TestController, request: TestRunRequest, token: CancellationToken, act: Act) {
  const run = controller.createTestRun(request);
  const asked = request.include ?? [...controller.items].map(([, item]) => item);
  for (const item of new Set(asked.map((one) => one.parent ?? one))) {
    if (token.isCancellationRequested || request.exclude?.includes(item)) continue;
    run.started(item);
    try {
      await act(item, run, token, controller);
    } catch (error) {
      run.errored(item, new TestMessage(messageOf(error)));
    }
  }
  run.end();
}

const verbOf = ({ id, uri }: TestItem) => ["rescore", id, "--agent", uri!.fsPath];

const rescore: Act = async (item, run, token, controller) => {
  const options = { timeoutS: rescoreSeconds, token };
  const { code, stdout, stderr } = await runVerb(await runnerFor(item.uri!), [...verbOf(item), "--json"], options);
  if (code !== 0) throw new Error(visible(stderr.trim()));
  const lines = stdout
    .trim()
    .split("\n")
    .map((line): Rescored => JSON.parse(line));
  const [changed, same] = [true, false].map((is) => lines.filter(({ before, after }) => (before !== after) === is));
  const failed = (on: TestItem, what: string, expected: string, actual: string) => {
    const message = TestMessage.diff(what, expected, actual);
    message.location = new Location(item.uri!, item.range!);
    run.failed(on, message);
  };
  const children = [...changed!, ...same!].slice(0, mostListed).map(({ rolloutId, step, before, after, message }) => {
    const child = controller.createTestItem(`${item.id} ${rolloutId}`, visible(rolloutId), item.uri);
    Object.assign(child, { range: item.range, description: `step ${step}, reward ${before}` });
    return { child, before, after, now: after === null ? visible(`failed: ${message}`) : String(after) };
  });
  item.children.replace(children.map(({ child }) => child));
  for (const { child, before, after, now } of children) {
    if (before === after) run.passed(child);
    else failed(child, `the stored reward is ${before}, now it is ${now}`, String(before), now);
  }
  const counts = `${changed!.length} of ${lines.length} rollouts have another reward`;
  if (changed!.length > 0) failed(item, counts, `${lines.length} reproduced`, `${same!.length} reproduced`);
  else run.passed(item);
  run.appendOutput(`${item.label}: ${counts}\r\n`);
};

const debugGrader: Act = async (item) => {
  const { command, cwd } = await runnerFor(item.uri!);
  await debug.startDebugging(workspace.getWorkspaceFolder(item.uri!), debugConfiguration(command, verbOf(item), cwd));
};

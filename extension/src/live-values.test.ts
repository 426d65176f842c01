/** What the class does with an editor's documents; what it says of a run is live-lines.test.ts's. */
import { afterEach, expect, it, vi } from "vitest";
import { foldRun } from "../../runner/src/telemetry/fold.ts";
import { LiveValues } from "./live-values.ts";
import type { Services } from "./services.ts";

const editor = vi.hoisted(() => ({ documents: [] as object[], alarms: new Map<string, object[]>() }));
vi.mock("vscode", () => {
  const event = () => ({ dispose() {} });
  const alarms = {
    set: (uri: { scheme: string; fsPath: string }, found: object[]) =>
      editor.alarms.set(`${uri.scheme}:${uri.fsPath}`, found),
    delete: (uri: { scheme: string; fsPath: string }) => editor.alarms.delete(`${uri.scheme}:${uri.fsPath}`),
    dispose() {},
  };
  return {
    languages: { createDiagnosticCollection: () => alarms, registerCodeLensProvider: event },
    workspace: {
      get textDocuments() {
        return editor.documents;
      },
      getConfiguration: () => ({ get: (_: string, usual: unknown) => usual }),
      ...{ onDidOpenTextDocument: event, onDidCloseTextDocument: event, onDidChangeConfiguration: event },
    },
    Diagnostic: class {},
    DiagnosticSeverity: { Warning: 1, Information: 2 },
    EventEmitter: class {
      event = event;
      fire() {}
      dispose() {}
    },
    Range: class {},
    Uri: { file: (fsPath: string) => ({ scheme: "file", fsPath }), parse: String },
  };
});

let answer = () => {};
const path = "/p/recipe.yaml";
const document = (scheme: string) => ({ uri: { scheme, fsPath: path, toString: () => path }, languageId: "yaml" });
const alarm = { type: "health", step: 1, rule: "truncation", severity: "alarm", message: "", rolloutIds: [], time: 1 };
const opened = vi.fn(() => ({ state: foldRun([alarm as never]), dispose() {} }));
const services = {
  log: { error: (error: Error) => expect.fail(error.message) },
  runs: { entries: [{ recipe: path, directory: "/p/runs/a" }], open: opened, onDidChange: () => ({ dispose() {} }) },
  server: {
    onDidChange: () => ({ dispose() {} }),
    client: { sendRequest: () => new Promise<null>((resolve) => (answer = () => resolve(null))) },
  },
} as unknown as Services;

afterEach(() => vi.useRealTimers());

it("shows a run's alarms in the file, not in earlier versions of it, and none once it is closed", async () => {
  vi.useFakeTimers();
  editor.documents = [document("file"), document("git")];
  const values = new LiveValues(services);
  await vi.advanceTimersByTimeAsync(1000);
  answer();
  await vi.advanceTimersByTimeAsync(10);
  expect([...editor.alarms].map(([uri, found]) => [uri, found.length])).toEqual([[`file:${path}`, 1]]);
  expect(opened).toHaveBeenCalledTimes(1);

  // The server answers after the document has gone.
  const refresh = () => (values as unknown as { refresh(): Promise<void> }).refresh();
  const late = refresh();
  const answerLate = answer;
  editor.documents = [];
  await refresh();
  answerLate();
  await late;
  expect([...editor.alarms]).toEqual([]);
  values.dispose();
});

import * as vscode from "vscode";
import { type ResolveResult, resolveRequest } from "../../lsp/src/requests.ts";
import { fixed } from "../../runner/src/telemetry/views/lines.ts";
import { ask } from "./client.ts";
import { alarmLines, type Places, valueLines } from "./live-lines.ts";
import type { OpenRun, RunEntry } from "./runs.ts";
import type { Services } from "./services.ts";

/** At most so often. */
const refreshMs = 1000;
const mostRuns = 5;
const severities = { alarm: vscode.DiagnosticSeverity.Warning, advice: vscode.DiagnosticSeverity.Information };

/** In a recipe's editor: what its newest run says, beside the keys. A run is followed while its recipe is open. */
export class LiveValues implements vscode.Disposable {
  /** By the recipe's path. */
  private readonly followed = new Map<string, { directory: string; run: OpenRun }>();
  private readonly alarms = vscode.languages.createDiagnosticCollection("molt-runs");
  private readonly changed = new vscode.EventEmitter<void>();
  private readonly disposables: vscode.Disposable[];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly services: Services) {
    const soon = () => this.soon();
    const provideCodeLenses = (document: vscode.TextDocument) => this.lenses(document);
    const provider = { onDidChangeCodeLenses: this.changed.event, provideCodeLenses };
    this.disposables = [
      this.alarms,
      this.changed,
      vscode.languages.registerCodeLensProvider({ language: "yaml", scheme: "file" }, provider),
      services.runs.onDidChange(soon),
      services.server.onDidChange(soon),
      vscode.workspace.onDidOpenTextDocument(soon),
      vscode.workspace.onDidCloseTextDocument(soon),
      vscode.workspace.onDidChangeConfiguration(soon),
    ];
    soon();
  }

  dispose(): void {
    clearTimeout(this.timer);
    for (const { run } of this.followed.values()) run.dispose();
    for (const one of this.disposables) one.dispose();
  }

  private soon(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.refresh().catch((error) => this.services.log.error(error));
    }, refreshMs);
  }

  private async refresh(): Promise<void> {
    // Of other schemes are earlier versions of the same file.
    const open = vscode.workspace.textDocuments.filter(({ uri }) => uri.scheme === "file");
    const wanted = new Map(open.map((document) => [document.uri.fsPath, this.runsOf(document)[0]?.directory]));
    for (const [path, { directory, run }] of this.followed) {
      if (wanted.get(path) === directory) continue;
      run.dispose();
      this.followed.delete(path);
      this.alarms.delete(vscode.Uri.file(path));
    }
    for (const [path, directory] of wanted) if (directory) this.follow(path, directory);
    for (const document of open) await this.showAlarms(document);
    this.changed.fire();
  }

  private follow(path: string, directory: string): void {
    if (this.followed.has(path)) return;
    this.followed.set(path, { directory, run: this.services.runs.open(directory, () => this.soon()) });
  }

  private async showAlarms({ uri }: vscode.TextDocument): Promise<void> {
    const followed = this.followed.get(uri.fsPath);
    if (!followed) return;
    const { directory, run } = followed;
    const places = await this.placesOf(uri);
    if (this.followed.get(uri.fsPath) !== followed) return; // it was closed, or has a newer run
    const found = alarmLines(run.state, places);
    const problems = found.map(({ range, rule, severity, message, rolloutIds }) => {
      const problem = new vscode.Diagnostic(rangeOf(range), message, severities[severity]);
      const target = { directory, rolloutId: rolloutIds[0] };
      const query = encodeURIComponent(JSON.stringify([target]));
      problem.source = `run ${run.state.runId}`;
      problem.code = { value: rule, target: vscode.Uri.parse(`command:molt.inspectRollouts?${query}`) };
      return problem;
    });
    this.alarms.set(uri, problems);
  }

  private async lenses(document: vscode.TextDocument): Promise<vscode.CodeLens[]> {
    const runs = this.runsOf(document);
    const state = this.followed.get(document.uri.fsPath)?.run.state;
    const lens = (line: number, title: string, directory: string) => {
      const command: vscode.Command = { command: "molt.openDashboard", title, arguments: [directory] };
      return new vscode.CodeLens(new vscode.Range(line, 0, line, 0), command);
    };
    const listed = runs.slice(0, mostRuns).map(({ id, live, directory }, index) => {
      const reward = index === 0 ? state?.steps.at(-1)?.metrics.reward : undefined;
      const now = reward === undefined ? "" : ` step ${state?.step}, reward ${fixed(reward)}`;
      return lens(0, `${live ? "$(pulse)" : "$(history)"} ${id}${now}`, directory);
    });
    if (!state) return listed;
    const values = valueLines(state, await this.placesOf(document.uri));
    return [...listed, ...values.map(({ line, text }) => lens(line, text, runs[0]!.directory))];
  }

  /** The newest first; none where the setting says so. */
  private runsOf({ uri, languageId }: vscode.TextDocument): RunEntry[] {
    const isOn = languageId === "yaml" && vscode.workspace.getConfiguration("molt", uri).get("liveValues", true);
    return isOn ? this.services.runs.entries.filter(({ recipe }) => recipe === uri.fsPath) : [];
  }

  private async placesOf(uri: vscode.Uri): Promise<Places> {
    const resolved = await ask<ResolveResult>(this.services.server, resolveRequest, { uri: uri.toString() });
    return resolved?.places ?? {};
  }
}

function rangeOf({ start, end }: Places[string]): vscode.Range {
  return new vscode.Range(start.line, start.character, end.line, end.character);
}

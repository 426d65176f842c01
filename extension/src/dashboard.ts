import { basename } from "node:path";
import { commands, type Disposable, ViewColumn, type WebviewPanel, window } from "vscode";
import { messageOf, RunnerError } from "../../runner/src/errors.ts";
import type { RunState } from "../../runner/src/telemetry/fold.ts";
import { visible } from "../../runner/src/telemetry/views/lines.ts";
import { type Difference, recipeDifferences } from "./differences.ts";
import type { FromPage, RunStatus, SavedState, ToPage } from "./messages.ts";
import { rowOf, runLabel } from "./run-rows.ts";
import type { OpenRun } from "./runs.ts";
import { changedFrom, rowsOf } from "./series.ts";
import type { Services } from "./services.ts";
import { directoryOf, type RunTarget } from "./targets.ts";
import { openPage, type Page } from "./webview.ts";

const view = "molt.dashboard";
const flushMs = 100;

/** The one there is: charts of several runs are laid over each other in it. */
let dashboard: Dashboard | null = null;

/** Charts of a run. Without one: of the newest, what is shown if that is over, or of what will come. */
export function openDashboard(services: Services) {
  return (target?: RunTarget) => {
    const [newest] = services.runs.entries;
    const directory = directoryOf(target) ?? (dashboard && !newest?.live ? undefined : newest?.directory);
    show(services, directory ? [directory] : []);
  };
}

/** Charts of runs over each other, and what their recipes differ in: of those selected in a tree, else picked. */
export function compareRuns(services: Services) {
  return async (target?: RunTarget, selected: RunTarget[] = []) => {
    const given = selected.flatMap((one) => directoryOf(one) ?? []);
    const directories = given.length > 1 ? given : await pickRuns(services, directoryOf(target));
    if (directories) show(services, directories, true);
  };
}

async function pickRuns({ runs }: Services, picked?: string): Promise<string[] | null> {
  if (runs.entries.length < 2) throw new Error("there are not two runs to compare");
  const items = runs.entries.map(({ id, directory }) => ({ label: id, directory, picked: directory === picked }));
  const placeHolder = "Runs to compare: two or more";
  const chosen = await window.showQuickPick(items, { canPickMany: true, placeHolder });
  if (chosen?.length === 1) throw new Error("one run is nothing to compare: pick two or more");
  return chosen?.length ? chosen.map(({ directory }) => directory) : null;
}

/** Brings a dashboard back that was open when the window was reloaded. */
export function restoreDashboard(services: Services): Disposable {
  return window.registerWebviewPanelSerializer(view, {
    async deserializeWebviewPanel(panel: WebviewPanel, state?: SavedState) {
      const shown = Array.isArray(state?.shown) ? state.shown.map(String) : [];
      if (dashboard) panel.dispose();
      else dashboard = new Dashboard(services, shown, panel);
    },
  });
}

/** `instead`: of what is shown. */
function show(services: Services, directories: string[], instead = false): void {
  if (!dashboard) dashboard = new Dashboard(services, directories);
  else dashboard.show(instead ? directories : [...new Set([...dashboard.shown, ...directories])]);
}

interface Followed {
  run: OpenRun;
  /** Events from this step on are not posted yet; null: all are. */
  from: number | null;
}

class Dashboard {
  private readonly services: Services;
  private readonly page: Page<FromPage>;
  private readonly followed = new Map<string, Followed>();
  private readonly disposables: Disposable[];
  private timer: NodeJS.Timeout | undefined;
  private isReady = false;
  private hasShown = false;

  constructor(services: Services, directories: string[], panel?: WebviewPanel) {
    this.services = services;
    const options = { view, page: "dashboard-page", title: "Molt Runner: Dashboard", column: ViewColumn.Active, panel };
    this.page = openPage(services, options);
    this.disposables = [
      this.page.onMessage((message) => this.receive(message)),
      services.runs.onDidChange(() => this.runsChanged()),
      this.page.panel.onDidDispose(() => this.dispose()),
    ];
    this.follow(directories);
  }

  get shown(): string[] {
    return [...this.followed.keys()];
  }

  show(directories: string[]): void {
    this.page.panel.reveal();
    this.follow(directories);
    this.postAll();
  }

  /** Opened before there was a run, it shows the first that there is. */
  private runsChanged(): void {
    const [newest] = this.services.runs.entries;
    if (!this.hasShown && newest) this.follow([newest.directory]);
    this.postRuns();
    this.flush();
  }

  private follow(directories: string[]): void {
    this.hasShown ||= directories.length > 0;
    for (const directory of this.shown) if (!directories.includes(directory)) this.leave(directory);
    for (const directory of directories) {
      if (this.followed.has(directory)) continue;
      const run = this.services.runs.open(directory, (event) => {
        const followed = this.followed.get(directory)!;
        followed.from = Math.min(followed.from ?? Number.POSITIVE_INFINITY, changedFrom(event, run.state));
        this.timer ??= setTimeout(() => this.flush(), flushMs);
      });
      this.followed.set(directory, { run, from: 0 });
    }
  }

  private leave(directory: string): void {
    this.followed.get(directory)!.run.dispose();
    this.followed.delete(directory);
  }

  /** A page that is hidden is gone: it gets everything when it is back. */
  private flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (!this.isReady || !this.page.panel.visible) return;
    for (const [directory, followed] of this.followed) {
      const { from, run } = followed;
      if (from === null) continue;
      followed.from = null;
      this.post({ type: "rows", directory, from, tables: rowsOf(run.state, from) });
      this.postStatus(directory);
    }
  }

  private receive(message: FromPage): void {
    if (message.type === "ready") {
      this.isReady = true;
      this.postAll();
    } else if (message.type === "show") {
      const known = new Set([...this.services.runs.entries.map(({ directory }) => directory), ...this.shown]);
      this.follow(message.directories.filter((directory) => known.has(directory)));
      this.postAll();
    } else if (this.followed.has(message.directory)) {
      const { directory, step, rolloutId } = message;
      commands.executeCommand("molt.inspectRollouts", { directory, step, rolloutId });
    }
  }

  private postAll(): void {
    for (const followed of this.followed.values()) followed.from = 0;
    this.postRuns();
    this.flush();
    this.post({ type: "differences", ...differencesOf(this.shown) });
  }

  private postRuns(): void {
    const runs = this.services.runs.entries.map(({ directory, id }) => ({ directory, name: id }));
    const others = this.shown.filter((directory) => !runs.some((run) => run.directory === directory));
    runs.push(...others.map((directory) => ({ directory, name: basename(directory) })));
    this.post({ type: "runs", runs, shown: this.shown });
    for (const directory of this.shown) this.postStatus(directory);
  }

  private postStatus(directory: string): void {
    const { run } = this.followed.get(directory)!;
    const live = this.services.runs.entries.some((entry) => entry.directory === directory && entry.live);
    this.post({ type: "status", status: statusOf(directory, run.state, live, run.source) });
  }

  private post(message: ToPage): void {
    if (this.isReady && this.page.panel.visible) this.page.post(message);
  }

  private dispose(): void {
    clearTimeout(this.timer);
    dashboard = null;
    this.follow([]);
    for (const one of this.disposables) one.dispose();
  }
}

export function statusOf(directory: string, state: RunState, live: boolean, source: "live" | "log"): RunStatus {
  const row = rowOf(state, live);
  const way = source === "live" ? "live" : "following its log: its live channel does not answer";
  const ended = row.failure ? `failed: ${visible(row.failure)}` : row.state;
  const alarms = state.health.map((alarm) => ({ ...alarm, message: visible(alarm.message) }));
  const standing = row.state === "running" ? way : row.state === "died" ? "died: no process is at work on it" : ended;
  return { directory, label: runLabel(row), standing, alarms };
}

function differencesOf(directories: string[]): { differences: Difference[]; problem: string | null } {
  try {
    return { differences: directories.length > 1 ? recipeDifferences(directories) : [], problem: null };
  } catch (error) {
    return { differences: [], problem: error instanceof RunnerError ? error.format() : messageOf(error) };
  }
}

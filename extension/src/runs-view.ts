import { existsSync } from "node:fs";
import { join } from "node:path";
import * as vscode from "vscode";
import { fixed, visible } from "../../runner/src/telemetry/views/lines.ts";
import { type RunRow, readRow, rowOf, runLabel, runTooltip } from "./run-rows.ts";
import type { OpenRun, RunEntry } from "./runs.ts";
import type { Services } from "./services.ts";

/** An element of the tree: a run, or below it an alarm. */
type RunNode = { entry: RunEntry; alarm?: RunRow["health"][number] };

const icons: Record<RunRow["state"], vscode.ThemeIcon> = {
  running: new vscode.ThemeIcon("sync~spin", new vscode.ThemeColor("charts.blue")),
  completed: new vscode.ThemeIcon("pass", new vscode.ThemeColor("charts.green")),
  interrupted: new vscode.ThemeIcon("debug-pause"),
  failed: new vscode.ThemeIcon("error", new vscode.ThemeColor("charts.red")),
  died: new vscode.ThemeIcon("circle-slash", new vscode.ThemeColor("charts.red")),
  unreadable: new vscode.ThemeIcon("question"),
};

const refreshMs = 500;

/** The tree of runs and the status bar's item of the live one. Live runs are followed, others read once. */
export function showRuns({ runs, context }: Services): vscode.Disposable {
  const changed = new vscode.EventEmitter<void>();
  const followed = new Map<string, OpenRun>();
  const status = vscode.window.createStatusBarItem("run", vscode.StatusBarAlignment.Right, -1);
  status.name = "Molt Runner: live run";
  const row = async ({ directory, live }: RunEntry) => {
    const run = followed.get(directory);
    return run && run.state.time !== null ? rowOf(run.state, live) : readRow(directory, live);
  };

  let timer: NodeJS.Timeout | undefined;
  const update = () => {
    timer = undefined;
    changed.fire();
    showStatus(runs.entries.find(({ live }) => live));
  };
  const updateSoon = () => {
    timer ??= setTimeout(update, refreshMs);
  };

  const showStatus = async (entry: RunEntry | undefined) => {
    if (!entry) return status.hide();
    const shown = await row(entry);
    if (!runs.entries.includes(entry)) return; // it has ended meanwhile
    const { step, totalSteps, reward } = shown;
    status.text = `$(pulse) ${step}/${totalSteps ?? "?"}${reward === null ? "" : ` reward ${fixed(reward)}`}`;
    status.tooltip = `${runTooltip(entry.id, shown)}\nOpens its dashboard`;
    status.command = { title: "Open Dashboard", command: "molt.openDashboard", arguments: [entry.directory] };
    status.show();
  };

  const followLive = () => {
    const live = new Set(runs.entries.filter((entry) => entry.live).map(({ directory }) => directory));
    for (const [directory, run] of followed) {
      if (live.has(directory)) continue;
      run.dispose();
      followed.delete(directory);
    }
    for (const directory of live) {
      if (followed.has(directory)) continue;
      followed.set(directory, runs.open(directory, updateSoon));
    }
    setContexts(runs.entries);
    update();
  };

  const tree = vscode.window.createTreeView<RunNode>("molt.runs", {
    canSelectMany: true,
    treeDataProvider: {
      onDidChangeTreeData: changed.event,
      getChildren: async (node) => {
        if (!node) return runs.entries.map((entry) => ({ entry }));
        return node.alarm ? [] : (await row(node.entry)).health.map((alarm) => ({ entry: node.entry, alarm }));
      },
      getTreeItem: async ({ entry, alarm }) => (alarm ? alarmItem(entry, alarm) : runItem(entry, await row(entry))),
    },
  });
  const release = {
    dispose: () => {
      clearTimeout(timer);
      for (const run of followed.values()) run.dispose();
    },
  };
  context.subscriptions.push(changed, status, tree, release);
  return runs.onDidChange(followLive);
}

function runItem(entry: RunEntry, row: RunRow): vscode.TreeItem {
  const hasAlarms = row.health.length > 0;
  const item = new vscode.TreeItem(entry.id, vscode.TreeItemCollapsibleState[hasAlarms ? "Collapsed" : "None"]);
  item.id = entry.directory;
  const roots = vscode.workspace.workspaceFolders ?? [];
  const alarms = hasAlarms ? [`${row.health.length} ${row.health.length === 1 ? "alarm" : "alarms"}`] : [];
  item.description = [runLabel(row), ...alarms, ...(roots.length > 1 ? [entry.folder.name] : [])].join(", ");
  item.tooltip = runTooltip(entry.id, row);
  item.iconPath = icons[row.state];
  const forkable = existsSync(join(entry.directory, "checkpoints")) ? " forkable" : "";
  item.contextValue = `run ${entry.live ? "live" : "ended"}${forkable}`;
  item.command = { title: "Open Dashboard", command: "molt.openDashboard", arguments: [entry.directory] };
  return item;
}

function alarmItem({ directory }: RunEntry, alarm: RunRow["health"][number]): vscode.TreeItem {
  const { message, severity, step, rule, rolloutIds } = alarm;
  const item = new vscode.TreeItem(visible(message));
  item.description = `${severity} at step ${step}, ${rule}`;
  item.tooltip = `${visible(message)}\n${item.description}`;
  item.iconPath = new vscode.ThemeIcon(severity === "alarm" ? "warning" : "info");
  const of = { directory, step, rolloutId: rolloutIds[0] };
  item.command = { title: "Inspect Rollouts", command: "molt.inspectRollouts", arguments: [of] };
  return item;
}

/** What the walkthrough's steps and menus wait for. */
function setContexts(entries: RunEntry[]): void {
  const trained = entries.filter(({ directory }) => existsSync(join(directory, "export")));
  const byRl = trained.some(({ directory }) => existsSync(join(directory, "rollouts")));
  for (const [name, value] of Object.entries({ hasModel: trained.length > 0, hasTrained: byRl })) {
    vscode.commands.executeCommand("setContext", `molt.${name}`, value);
  }
}

import { existsSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { type Disposable, EventEmitter, Uri, type WorkspaceFolder, workspace } from "vscode";
import { messageOf } from "../../runner/src/errors.ts";
import type { TimedEvent } from "../../runner/src/telemetry/events.ts";
import { listRuns, ownerOf } from "../../runner/src/telemetry/find-run.ts";
import { applyEvent, emptyRun, type RunState } from "../../runner/src/telemetry/fold.ts";

export interface RunEntry {
  id: string;
  directory: string;
  folder: WorkspaceFolder;
  /** A process is at work on it. */
  live: boolean;
  /** Absolute path of the recipe file that it was started from, where that still is. */
  recipe: string | null;
}

/** A run that is followed. Whoever opened it disposes of it. */
export interface OpenRun extends Disposable {
  /** Empty until the first update. */
  readonly state: RunState;
  readonly source: "live" | "log";
}

/** Null: the state is new as a whole. */
type Listener = (event: TimedEvent | null) => void;

/** How often a process that was killed, and so took no leave, is looked for. */
const pollMs = 2000;
const settleMs = 200;

/** The runs of the workspace's folders: any folder that holds an `events.ndjson`. */
export class Runs implements Disposable {
  /** The one written to last first. */
  entries: RunEntry[] = [];
  private readonly changed = new EventEmitter<void>();
  readonly onDidChange = this.changed.event;
  private readonly followers = new Map<string, Follower>();
  private readonly recipes = new Map<string, string | null>();
  private listed: Promise<void> = Promise.resolve();
  private readonly disposables: Disposable[] = [this.changed];
  private refreshing: NodeJS.Timeout | undefined;
  private polling: NodeJS.Timeout | undefined;

  constructor() {
    const soon = () => this.refreshSoon(settleMs);
    for (const glob of ["**/events.ndjson", "**/owner.pid"]) {
      const watcher = workspace.createFileSystemWatcher(glob, false, true, false);
      this.disposables.push(watcher, watcher.onDidCreate(soon), watcher.onDidDelete(soon));
    }
    // A run that is begun or resumed has its server a while after its first events.
    const servers = workspace.createFileSystemWatcher("**/server.json", false, false, true);
    const serves = ({ fsPath }: Uri) => this.followers.get(dirname(fsPath))?.restart();
    this.disposables.push(servers, servers.onDidCreate(serves), servers.onDidChange(serves));
    const restart = () => {
      for (const follower of this.followers.values()) follower.restart();
    };
    this.disposables.push(workspace.onDidChangeWorkspaceFolders(soon), workspace.onDidGrantWorkspaceTrust(restart));
    soon();
  }

  /** Listeners of one run share one follower, which ends with the last of them. */
  open(directory: string, listener: Listener): OpenRun {
    const follower = this.followers.get(directory) ?? new Follower(directory);
    this.followers.set(directory, follower);
    follower.listeners.add(listener);
    follower.start();
    const dispose = () => {
      if (!follower.listeners.delete(listener) || follower.listeners.size > 0) return;
      follower.dispose();
      this.followers.delete(directory);
    };
    return {
      get state() {
        return follower.state;
      },
      get source() {
        return follower.source;
      },
      dispose,
    };
  }

  /** Looks for runs anew, once those who came before have: the newest look has the last word. */
  refresh(): Promise<void> {
    const listed = this.listed.then(() => this.list());
    this.listed = listed.catch(() => {});
    return listed;
  }

  private async list(): Promise<void> {
    const logs = await workspace.findFiles("**/events.ndjson", "**/node_modules/**");
    const roots = new Set(logs.map(({ fsPath }) => dirname(dirname(fsPath))));
    const listed = [...roots].flatMap((root) => listRuns(root)).sort((one, other) => other.writtenAt - one.writtenAt);
    const entries = listed.map(async ({ id, path: directory }) => {
      const folder = workspace.getWorkspaceFolder(Uri.file(directory));
      if (!folder) return [];
      // One that has just begun may not say yet.
      const recipe = this.recipes.get(directory) ?? (await recipeOf(directory, folder.uri.fsPath));
      this.recipes.set(directory, recipe);
      return [{ id, directory, folder, live: ownerOf(directory) !== null, recipe }];
    });
    this.entries = (await Promise.all(entries)).flat();
    // One that had ended may have been resumed.
    for (const { directory, live } of this.entries) if (live) this.followers.get(directory)?.start();
    this.changed.fire();
    this.poll();
  }

  dispose(): void {
    clearTimeout(this.refreshing);
    clearTimeout(this.polling);
    for (const follower of this.followers.values()) follower.dispose();
    for (const one of this.disposables) one.dispose();
  }

  private refreshSoon(ms: number): void {
    clearTimeout(this.refreshing);
    // A folder that goes while it is looked at.
    this.refreshing = setTimeout(() => this.refresh().catch(() => this.refreshSoon(pollMs)), ms);
  }

  private poll(): void {
    clearTimeout(this.polling);
    const live = this.entries.filter((entry) => entry.live);
    if (live.some(({ directory }) => ownerOf(directory) === null)) this.refreshSoon(0);
    else if (live.length > 0) this.polling = setTimeout(() => this.poll(), pollMs);
  }
}

/** The log names it as it was typed, in the folder that `runs/` usually stands in. A fork's is its parent's. */
export async function recipeOf(directory: string, folder: string): Promise<string | null> {
  const named = (await startOf(directory))?.recipe;
  const base = named && [dirname(dirname(directory)), folder].find((each) => existsSync(resolve(each, named)));
  if (!base) return null;
  const path = resolve(base, named);
  const parent = dirname(path);
  const isCopy = basename(path) === "recipe.yaml" && existsSync(join(parent, "events.ndjson")) && parent !== directory;
  // As the editor writes it: of a drive's letter.
  return isCopy ? recipeOf(parent, folder) : Uri.file(path).fsPath;
}

async function startOf(directory: string) {
  const { readEvents } = await import("../../runner/src/telemetry/log.ts");
  try {
    for (const event of readEvents(join(directory, "events.ndjson"))) return event.type === "started" ? event : null;
  } catch {
    // A log that cannot be read says so where it is opened.
  }
  return null;
}

class Follower {
  state = emptyRun();
  source: "live" | "log" = "log";
  readonly listeners = new Set<Listener>();
  private stop = new AbortController();
  private isAtWork = false;

  constructor(private readonly directory: string) {}

  async start(): Promise<void> {
    if (this.isAtWork) return;
    this.isAtWork = true;
    const { signal } = this.stop;
    try {
      const { follow } = await import("../../runner/src/telemetry/live/follow.ts");
      for await (const update of follow(this.directory, signal, workspace.isTrusted)) {
        if (update.type === "event") applyEvent(this.state, update.event);
        else [this.state, this.source] = [update.run, update.source];
        this.tell(update.type === "event" ? update.event : null);
      }
    } catch (error) {
      this.state = { ...emptyRun(), runId: basename(this.directory), failure: messageOf(error) };
      this.tell(null);
    }
    this.isAtWork = false;
    if (signal !== this.stop.signal) this.start();
  }

  /** Where the log alone was followed: without trust, or before there was a server. */
  restart(): void {
    this.stop.abort();
    this.stop = new AbortController();
  }

  dispose(): void {
    this.stop.abort();
    this.listeners.clear();
  }

  private tell(event: TimedEvent | null): void {
    for (const listener of this.listeners) listener(event);
  }
}

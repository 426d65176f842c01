import { existsSync } from "node:fs";
import { basename, join } from "node:path";
import { commands, type Disposable, RelativePattern, Uri, type WebviewPanel, window, workspace } from "vscode";
import { messageOf } from "../../runner/src/errors.ts";
import { findRollouts } from "../../runner/src/telemetry/shards.ts";
import { RolloutIndex, type RolloutQuery } from "./rollout-index.ts";
import { type FromInspector, type InspectorState, shownRollout, type ToInspector } from "./rollout-view.ts";
import { runnerFor, runVerb } from "./runner.ts";
import type { Services } from "./services.ts";
import { type RunTarget, runTarget } from "./targets.ts";
import { openPage, type Page } from "./webview.ts";

/** What a link asks for: one rollout, else the list of those that fit. */
interface InspectTarget {
  directory: string;
  rolloutId?: string;
  step?: number;
  filter?: Partial<RolloutQuery>;
}

/** From one look at what a live run has stored to the next, at least; where looks take long, so many times as long. */
const newsMs = 1000;
const newsShare = 10;

const view = "molt.inspector";
const inspectors = new Map<string, Inspector>();

/** `molt.inspectRollouts`. */
export function inspectRollouts(services: Services) {
  return async (target?: InspectTarget | RunTarget) => {
    const asked = typeof target === "object" && "directory" in target ? target : null;
    const directory = asked?.directory ?? (await runTarget(services.runs, target as RunTarget))?.directory;
    if (directory === undefined) return;
    const inspector = inspectors.get(directory) ?? new Inspector(services, directory);
    inspector.show(asked ?? { directory });
  };
}

/** Brings back those that were open when the window was reloaded; of each run one, and none of a run that is gone. */
export function restoreInspectors(services: Services): Disposable {
  return window.registerWebviewPanelSerializer(view, {
    async deserializeWebviewPanel(panel: WebviewPanel, state?: Partial<InspectorState>) {
      const directory = String(state?.directory);
      const isRun = existsSync(join(directory, "events.ndjson"));
      if (isRun && !inspectors.has(directory)) new Inspector(services, directory, panel);
      else panel.dispose();
    },
  });
}

class Inspector {
  private readonly directory: string;
  private readonly page: Page<FromInspector>;
  private readonly index: RolloutIndex;
  private isReady = false;
  private wanted: ToInspector | null = null;
  /** What the page lists; null while it shows something else. */
  private listed: RolloutQuery | null = null;
  private timer: NodeJS.Timeout | undefined;
  private waitMs = newsMs;

  constructor(services: Services, directory: string, panel?: WebviewPanel) {
    this.directory = directory;
    this.index = new RolloutIndex(directory);
    const title = `Rollouts of ${basename(directory)}`;
    this.page = openPage(services, { view, page: "inspector-page", title, panel });
    this.page.onMessage((message) => {
      const id = message.type === "open" ? message.id : null;
      this.receive(message).catch((error) => this.post({ type: "problem", id, message: messageOf(error) }));
    });
    // A hidden page is gone; shown again, it loads anew from what it kept.
    this.page.panel.onDidChangeViewState(({ webviewPanel }) => {
      this.isReady &&= webviewPanel.visible;
    });
    const watcher = workspace.createFileSystemWatcher(new RelativePattern(Uri.file(directory), "rollouts/*"));
    const soon = () => {
      this.timer ??= setTimeout(() => this.tellNews().catch((error) => services.log.error(error)), this.waitMs);
    };
    for (const event of [watcher.onDidCreate, watcher.onDidChange]) event(soon);
    this.page.panel.onDidDispose(() => {
      clearTimeout(this.timer);
      watcher.dispose();
      inspectors.delete(directory);
    });
    inspectors.set(directory, this);
  }

  show({ directory, rolloutId, step, filter }: InspectTarget): void {
    this.page.panel.reveal();
    const query = { ...(step !== undefined && { step }), ...filter };
    const go: ToInspector = { type: "go", directory, id: rolloutId ?? null, query };
    if (this.isReady) this.post(go);
    else this.wanted = go;
  }

  private post(message: ToInspector): void {
    this.page.post(message);
  }

  private async receive(message: FromInspector): Promise<void> {
    if (message.type === "ready") {
      this.isReady = true;
      if (this.wanted) this.post(this.wanted);
      this.wanted = null;
    } else if (message.type === "list") {
      this.listed = message.query;
      await this.index.refresh(message.anew);
      this.postList(false);
    } else if (message.type === "open") {
      this.listed = null;
      await this.open(message.id);
    } else if (message.type === "source") {
      await commands.executeCommand("molt.openSource", message.place, this.directory);
    }
  }

  /** Of what was asked for last, whichever reading ends first. */
  private postList(isNews: boolean): void {
    if (this.listed) this.post({ type: "list", isNews, ...this.index.query(this.listed) });
  }

  /** A page that is hidden asks anew when it is back. */
  private async tellNews(): Promise<void> {
    this.timer = undefined;
    if (!this.listed || !this.isReady) return;
    const begun = performance.now();
    await this.index.refresh(true);
    this.waitMs = Math.max(newsMs, newsShare * (performance.now() - begun));
    this.postList(true);
  }

  private async open(id: string): Promise<void> {
    const row = this.index.find(id);
    if (row?.reward === null && id === row.rollout)
      throw new Error(`${id} failed (${row.dropped}): nothing of it is stored`);
    const { rollouts, step, dropped, trained = {} } = await findRollouts(this.directory, id, row?.step);
    const { texts, special, why } = await this.decode(id).catch((error: unknown) => {
      return { texts: [], special: [], why: messageOf(error) };
    });
    const copies = rollouts.map((rollout, at) => shownRollout(rollout, trained, texts[at]));
    const shown = { id, step, dropped: dropped?.reason ?? null, rollouts: copies, special, why };
    this.post({ type: "shown", shown });
  }

  /** By the run's tokenizer, which its runner has: texts by rollout, segment and token. */
  private async decode(id: string): Promise<{ texts: string[][][]; special: number[]; why: null }> {
    const runner = await runnerFor(Uri.file(this.directory));
    const { code, stdout, stderr } = await runVerb(runner, ["inspect", this.directory, "--json", "--", id]);
    if (code !== 0) throw new Error(stderr.trim());
    const decoded = [JSON.parse(stdout) as { texts: string[][]; special?: number[] }].flat();
    return { texts: decoded.map(({ texts }) => texts), special: decoded[0]?.special ?? [], why: null };
  }
}

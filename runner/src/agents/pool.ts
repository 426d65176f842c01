import { setMaxListeners } from "node:events";
import { rmSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../deadline.ts";
import type { Router } from "../engines/types.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { bundleAgent, bundleRoot, workerEntry } from "./bundle.ts";
import type { AgentSource } from "./load.ts";
import { type RolloutTask, type RunSettings, settle, type Warn } from "./rollout.ts";
import { AgentThread } from "./thread.ts";
import type { FailedRollout, Rollout } from "./types.ts";
import type { WorkerSetup } from "./worker.ts";

export type { RolloutSampling, RolloutTask } from "./rollout.ts";

export interface AgentChoice {
  /** The file of the agent's class; null with a command. */
  agentPath: string | null;
  /** Refuses agents with clients of their own (`run.deterministic`). */
  onlyEnv?: boolean;
  /** Words of the command that is the agent, and of the one that grades what it did. */
  agentCommand?: string[] | null;
  graderCommand?: string[] | null;
}

export interface AgentPoolOptions extends RunSettings, AgentChoice {
  workers: number;
  router: Router;
  /** Threads that are started again without a rollout that succeeds in between. */
  maxRestarts: number;
  emit?(event: Extract<RunEvent, { type: "worker" | "warning" }>): void;
}

/** Of threads that one rollout may see: it may be the cause. */
const mostDeaths = 2;
const pauseMs = 100;
/** For rollouts to close what they hold when the pool stops. */
const stopSeconds = 2;

interface Slot {
  thread: Promise<AgentThread>;
  /** Rollouts given to it. */
  load: number;
}

/** A rollout runs on the least loaded thread; one that dies is replaced. */
export class AgentPool {
  private readonly options: AgentPoolOptions;
  private readonly folder: string;
  private readonly removeFolder = () => {
    try {
      rmSync(this.folder, { recursive: true, force: true, maxRetries: 3 });
    } catch {
      // A program may leave what cannot be removed (Go's module cache is read-only): no reason to fail a run.
    }
  };
  private readonly slots: Slot[] = [];
  private readonly outcomes = new Set<Promise<unknown>>();
  private readonly warned = new Set<string>();
  private stopping = false;
  private restarts = 0;

  private constructor(options: AgentPoolOptions, folder: string) {
    this.options = options;
    this.folder = folder;
    process.once("exit", this.removeFolder);
  }

  /** Rejects with what is wrong with the agent's file or the tokenizer; nothing is left then. */
  static async start(options: AgentPoolOptions): Promise<AgentPool> {
    const pool = new AgentPool(options, await mkdtemp(join(bundleRoot(tmpdir()), ".molt-agent-")));
    try {
      await pool.startThreads();
      return pool;
    } catch (error) {
      await pool.stop();
      throw error;
    }
  }

  /** Resolves with data for either outcome. A rollout whose thread died runs again, as its next attempt. */
  async runRollout(task: RolloutTask, signal: AbortSignal): Promise<Rollout | FailedRollout> {
    for (let deaths = 0; ; deaths++) {
      const outcome = await this.runOnce({ ...task, attempt: task.attempt + deaths }, signal);
      const isAgain = !("segments" in outcome) && outcome.reason === "worker" && deaths < mostDeaths;
      if (!isAgain || this.stopping) return outcome;
      await sleep(pauseMs); // another thread has its place by then
    }
  }

  private async runOnce(task: RolloutTask, signal: AbortSignal): Promise<Rollout | FailedRollout> {
    const slot = this.slots.reduce((best, other) => (other.load < best.load ? other : best));
    setMaxListeners(0, signal); // one listener for each rollout that runs
    slot.load++;
    const settled = settle(task, this.options.runId, async () => (await slot.thread).run(task, signal));
    this.outcomes.add(settled);
    const outcome = await settled;
    this.outcomes.delete(settled);
    slot.load--;
    if ("segments" in outcome) this.restarts = 0;
    return outcome;
  }

  /** Rollouts that run end as `aborted`; their agents may close what they hold. */
  async stop(): Promise<void> {
    this.stopping = true;
    const started = await Promise.allSettled(this.slots.map(({ thread }) => thread));
    const threads = started.flatMap((it) => (it.status === "fulfilled" ? [it.value] : []));
    for (const thread of threads) thread.abortAll();
    const patience = sleep(deadlineMs(stopSeconds), undefined, { ref: false });
    await Promise.race([Promise.allSettled(this.outcomes), patience]);
    await Promise.all(threads.map((thread) => thread.terminate("the pool stopped")));
    this.removeFolder();
    process.removeListener("exit", this.removeFolder);
  }

  private async startThreads(): Promise<void> {
    const { workers, tokenizerFolder, chatTemplate, eosTokenIds, runId, seed, limits } = this.options;
    const agent = await agentSource(this.options, this.folder);
    const setup: WorkerSetup = { agent, tokenizerFolder, chatTemplate, eosTokenIds, runId, seed, limits };
    const entry = await workerEntry(this.folder);
    const start = () => AgentThread.start(entry, setup, this.options.router, this.warn);
    for (let i = 0; i < workers; i++) this.slots.push(this.watch({ thread: start(), load: 0 }, i, start));
    await Promise.all(this.slots.map(({ thread }) => thread));
  }

  /** Once a run, whichever thread says it. */
  private readonly warn: Warn = (kind, message) => {
    if (!this.warned.has(kind)) this.options.emit?.({ type: "warning", message });
    this.warned.add(kind);
  };

  /** Replaces the slot's thread when it dies, until too many did. */
  private watch(slot: Slot, worker: number, start: () => Promise<AgentThread>): Slot {
    const { maxRestarts, emit } = this.options;
    const giveUp = () => {
      slot.load = Number.POSITIVE_INFINITY; // taken only when no other is left
    };
    slot.thread
      .then(async (thread) => {
        const message = await thread.gone;
        if (this.stopping) return;
        emit?.({ type: "worker", worker, state: "died", message });
        if (this.restarts++ >= maxRestarts) return giveUp();
        slot.thread = start();
        this.watch(slot, worker, start);
        await slot.thread;
        emit?.({ type: "worker", worker, state: "restarted" });
      }, giveUp)
      .catch(giveUp);
    return slot;
  }
}

/** What workers load: the class bundled into `folder`, or the command as it is. */
export async function agentSource(options: AgentChoice, folder: string): Promise<AgentSource> {
  const { agentPath, agentCommand: command, graderCommand: grader = null } = options;
  if (command) return { name: command.join(" "), command, grader, folder };
  const [path, bundle] = [resolve(agentPath!), join(folder, "agent.mjs")];
  await bundleAgent(path, bundle);
  return { name: path, path, bundle, onlyEnv: options.onlyEnv };
}

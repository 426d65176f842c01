import { setMaxListeners } from "node:events";
import { rmSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../deadline.ts";
import type { Router } from "../engines/types.ts";
import { messageOf } from "../errors.ts";
import { bundleAgent, bundleRoot, workerEntry } from "./bundle.ts";
import { failedRollout, type RolloutLimits, type RolloutTask } from "./env-runner.ts";
import { AgentThread } from "./thread.ts";
import type { FailedRollout, Rollout } from "./types.ts";
import type { WorkerSetup } from "./worker.ts";

export type { RolloutSampling, RolloutTask } from "./env-runner.ts";

export interface AgentPoolOptions {
  /** Threads. */
  workers: number;
  agentPath: string;
  tokenizerFolder: string;
  chatTemplate?: string | null;
  eosTokenIds: number[];
  router: Router;
  runId: string;
  /** `run.seed`: turns are sampled with seeds made from it. */
  seed: number;
  limits: RolloutLimits;
}

/** Threads that died and were started again, without a rollout that succeeded in between. */
const maxRestarts = 5;
/** For rollouts to close what they hold when the pool stops. */
const stopSeconds = 2;

interface Slot {
  thread: Promise<AgentThread>;
  /** Rollouts given to it. */
  load: number;
}

/** The agent's worker threads. A rollout runs on the least loaded one; a thread that dies is replaced. */
export class AgentPool {
  private readonly options: AgentPoolOptions;
  private readonly setup: WorkerSetup;
  private readonly entry: string;
  private readonly folder: string;
  private readonly slots: Slot[] = [];
  private stopping = false;
  private readonly removeFolder = () => rmSync(this.folder, { recursive: true, force: true });
  private readonly outcomes = new Set<Promise<unknown>>();
  private restarts = 0;

  private constructor(options: AgentPoolOptions, folder: string, entry: string, bundle: string) {
    const { agentPath, tokenizerFolder, chatTemplate = null, eosTokenIds, runId, seed, limits } = options;
    this.options = options;
    this.folder = folder;
    this.entry = entry;
    const agent = { bundle, agentPath: resolve(agentPath) };
    this.setup = { ...agent, tokenizerFolder, chatTemplate, eosTokenIds, runId, seed, limits };
    process.once("exit", this.removeFolder);
  }

  /** Rejects with what is wrong with the agent's file or the tokenizer; nothing is left then. */
  static async start(options: AgentPoolOptions): Promise<AgentPool> {
    const folder = await mkdtemp(join(bundleRoot(tmpdir()), ".molt-agent-"));
    const bundle = join(folder, "agent.mjs");
    let pool: AgentPool | undefined;
    try {
      await bundleAgent(resolve(options.agentPath), bundle);
      pool = new AgentPool(options, folder, await workerEntry(folder), bundle);
      await pool.startThreads();
      return pool;
    } catch (error) {
      await pool?.stop();
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** Resolves with data for either outcome. */
  async runRollout(task: RolloutTask, signal: AbortSignal): Promise<Rollout | FailedRollout> {
    const slot = this.slots.reduce((best, other) => (other.load < best.load ? other : best));
    setMaxListeners(0, signal); // one listener for each rollout that runs
    slot.load++;
    const outcome = this.runOn(slot, task, signal);
    this.outcomes.add(outcome);
    try {
      return await outcome;
    } finally {
      slot.load--;
      this.outcomes.delete(outcome);
    }
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
    for (let i = 0; i < this.options.workers; i++) {
      const slot: Slot = { thread: this.startThread(), load: 0 };
      this.slots.push(slot);
      this.watch(slot);
    }
    await Promise.all(this.slots.map(({ thread }) => thread));
  }

  private startThread(): Promise<AgentThread> {
    return AgentThread.start(this.entry, this.setup, this.options.router);
  }

  /** Replaces the slot's thread when it dies, until too many did. */
  private watch(slot: Slot): void {
    slot.thread.then(
      async (thread) => {
        await thread.gone;
        if (this.stopping) return;
        if (this.restarts++ >= maxRestarts) {
          slot.load = Number.POSITIVE_INFINITY; // taken only when no other is left
          return;
        }
        slot.thread = this.startThread();
        this.watch(slot);
      },
      () => {}, // reported by `startThreads`, and by each rollout that wants the thread
    );
  }

  private async runOn(slot: Slot, task: RolloutTask, signal: AbortSignal): Promise<Rollout | FailedRollout> {
    try {
      const thread = await slot.thread;
      const outcome = await thread.run(task, signal);
      if ("segments" in outcome) this.restarts = 0;
      return outcome;
    } catch (error) {
      return failedRollout(task, this.options.runId, "worker", messageOf(error));
    }
  }
}

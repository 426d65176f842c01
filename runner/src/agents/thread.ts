import { Worker } from "node:worker_threads";
import { deadlineMs, withDeadline } from "../deadline.ts";
import type { Router } from "../engines/types.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { failedRollout, type RolloutTask } from "./env-runner.ts";
import type { FailedRollout, Rollout } from "./types.ts";
import type { FromWorker, ToWorker, WorkerSetup } from "./worker.ts";

const startSeconds = 60;
/** How often in a stall's time the thread is asked for a sign of life. */
const pingsPerStall = 5;

interface Running {
  task: RolloutTask;
  settle: (outcome: Rollout | FailedRollout) => void;
}

/** One worker thread, seen from the controller. When it dies, its rollouts fail and its leases are released. */
export class AgentThread {
  /** Resolves, with the reason, when the thread is gone. */
  readonly gone: Promise<string>;
  private readonly worker: Worker;
  private readonly setup: WorkerSetup;
  private readonly router: Router;
  private readonly running = new Map<number, Running>();
  private readonly leases = new Map<number, () => void>();
  private readonly pinger: NodeJS.Timeout;
  private unanswered = 0;
  private nextId = 0;
  private death = "";
  private isGone = false;

  private constructor(entry: string, setup: WorkerSetup, router: Router) {
    this.setup = setup;
    this.router = router;
    this.worker = new Worker(entry, { workerData: setup, execArgv: ["--enable-source-maps"], stdout: true });
    // What an agent prints must not run into what a command prints.
    this.worker.stdout.on("data", (chunk) => process.stderr.write(chunk));
    this.worker.on("error", (error) => {
      this.death ||= `the agent's thread died: ${messageOf(error)}`;
    });
    this.gone = new Promise((resolve) => {
      this.worker.once("exit", (code) => {
        this.death ||= `the agent's thread ended with code ${code}`;
        this.onGone();
        resolve(this.death);
      });
    });
    this.pinger = setInterval(() => this.ping(), deadlineMs(setup.limits.turnSeconds) / pingsPerStall).unref();
  }

  /** Rejects with what is wrong with the agent or the tokenizer. */
  static async start(entry: string, setup: WorkerSetup, router: Router): Promise<AgentThread> {
    const thread = new AgentThread(entry, setup, router);
    try {
      await withDeadline(thread.loaded(), startSeconds, `the agent ${setup.agentPath} to load`);
    } catch (error) {
      await thread.terminate("the agent did not load");
      throw error;
    }
    thread.worker.on("message", (message: FromWorker) => thread.onMessage(message));
    return thread;
  }

  abortAll(): void {
    for (const id of this.running.keys()) this.post({ type: "abort", id });
  }

  /** Resolves with data, whatever happens. */
  run(task: RolloutTask, signal: AbortSignal): Promise<Rollout | FailedRollout> {
    const fail = (reason: "aborted" | "worker", message: string) =>
      failedRollout(task, this.setup.runId, reason, message);
    if (signal.aborted) return Promise.resolve(fail("aborted", "the run took this rollout back"));
    if (this.isGone) return Promise.resolve(fail("worker", this.death));
    const id = this.nextId++;
    return new Promise((resolve) => {
      const onAbort = () => this.post({ type: "abort", id });
      signal.addEventListener("abort", onAbort, { once: true });
      const settle = (outcome: Rollout | FailedRollout) => {
        signal.removeEventListener("abort", onAbort);
        this.running.delete(id);
        resolve(outcome);
      };
      this.running.set(id, { task, settle });
      this.post({ type: "run", id, task });
    });
  }

  async terminate(reason: string): Promise<void> {
    this.death ||= reason;
    await this.worker.terminate();
    await this.gone;
  }

  private loaded(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.worker.once("message", (message: FromWorker) => {
        if (message.type !== "failed") return resolve();
        const { position, fix, exitCode } = message;
        reject(new RunnerError(message.message, { position, fix, exitCode }));
      });
      this.gone.then((reason) => reject(new RunnerError(reason, { position: { file: this.setup.agentPath } })));
    });
  }

  private post(message: ToWorker): void {
    if (!this.isGone) this.worker.postMessage(message);
  }

  private onMessage(message: FromWorker): void {
    if (message.type === "done") this.running.get(message.id)?.settle(message.outcome);
    else if (message.type === "acquire") this.acquire(message.call, message.sessionId, message.timeoutSeconds);
    else if (message.type === "release") this.leases.get(message.call)?.();
    else if (message.type === "pong") this.unanswered = 0;
  }

  private async acquire(call: number, sessionId: string, timeoutSeconds: number): Promise<void> {
    const controller = new AbortController();
    let release = () => controller.abort(new Error("taken back"));
    this.leases.set(call, () => {
      this.leases.delete(call);
      release();
    });
    try {
      const lease = await this.router.acquire(sessionId, timeoutSeconds, controller.signal);
      release = lease.release;
      if (!this.leases.has(call)) return lease.release();
      this.post({ type: "lease", call, url: lease.url, engine: lease.engine });
    } catch (error) {
      this.leases.delete(call);
      this.post({ type: "refused", call, message: messageOf(error) });
    }
  }

  /** A thread that an endless loop holds cannot answer: counted in pings, so that a busy controller blames nobody. */
  private ping(): void {
    if (this.unanswered++ < pingsPerStall) this.post({ type: "ping" });
    else this.terminate(`the agent blocked its thread for ${this.setup.limits.turnSeconds} s`);
  }

  private onGone(): void {
    this.isGone = true;
    clearInterval(this.pinger);
    for (const release of [...this.leases.values()]) release();
    for (const { task, settle } of [...this.running.values()]) {
      settle(failedRollout(task, this.setup.runId, "worker", this.death));
    }
  }
}

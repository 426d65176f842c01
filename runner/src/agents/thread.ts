import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { deadlineMs, withDeadline } from "../deadline.ts";
import { type Deferred, deferred } from "../deferred.ts";
import type { EngineLease, Router } from "../engines/types.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { RolloutFailure, type RolloutTask, takenBack, type Warn } from "./rollout.ts";
import type { FailedRollout, Rollout } from "./types.ts";
import type { FromWorker, ToWorker, WorkerSetup } from "./worker.ts";

const startSeconds = 60;
const endSeconds = 2;
/** How often in a stall's time the thread is asked for a sign of life. */
const pingsPerStall = 5;

/** That a thread takes to answer: worth a warning. */
const lagSeconds = 1;

type AcquireMessage = Extract<FromWorker, { type: "acquire" }>;

/** One worker thread, seen from the controller. When it dies, its rollouts fail and its leases are released. */
export class AgentThread {
  private readonly end = deferred<string>();
  /** Says why. */
  readonly gone = this.end.promise;
  private readonly worker: Worker;
  private readonly setup: WorkerSetup;
  private readonly router: Router;
  private readonly warn: Warn;
  private readonly loaded = deferred();
  private readonly running = new Map<number, Deferred<Rollout | FailedRollout>>();
  private readonly leases = new Map<number, EngineLease["release"]>();
  private pinger: NodeJS.Timeout | undefined;
  private unanswered = 0;
  private nextId = 0;
  private death = "";
  private isGone = false;

  private constructor(entry: string, setup: WorkerSetup, router: Router, warn: Warn) {
    this.setup = setup;
    this.warn = warn;
    this.router = router;
    this.worker = new Worker(entry, { workerData: setup, execArgv: ["--enable-source-maps"], stdout: true });
    // What an agent prints must not run into what a command prints.
    this.worker.stdout.on("data", (chunk) => process.stderr.write(chunk));
    this.worker.on("message", (message: FromWorker) => this.onMessage(message));
    this.worker.on("error", (error) => {
      this.death ||= `the agent's thread died: ${messageOf(error)}`;
    });
    this.worker.once("exit", (code) => this.onGone(`the agent's thread ended with code ${code}`));
  }

  /** Rejects with what is wrong with the agent or the tokenizer. */
  static async start(entry: string, setup: WorkerSetup, router: Router, warn: Warn): Promise<AgentThread> {
    const thread = new AgentThread(entry, setup, router, warn);
    try {
      await withDeadline(thread.loaded.promise, startSeconds, `the agent ${setup.agent.name} to load`);
    } catch (error) {
      await thread.terminate("the agent did not load");
      throw error;
    }
    // Loading has a deadline of its own.
    thread.pinger = setInterval(() => thread.ping(), deadlineMs(setup.limits.turnSeconds) / pingsPerStall).unref();
    return thread;
  }

  abortAll(): void {
    for (const id of this.running.keys()) this.post({ type: "abort", id });
  }

  /** Rejects when it is not to run any more, or the thread dies. */
  async run(task: RolloutTask, signal: AbortSignal): Promise<Rollout | FailedRollout> {
    if (signal.aborted) throw takenBack();
    if (this.isGone) throw new RolloutFailure("worker", this.death);
    const id = this.nextId++;
    const outcome = deferred<Rollout | FailedRollout>();
    const onAbort = () => this.post({ type: "abort", id });
    signal.addEventListener("abort", onAbort, { once: true });
    this.running.set(id, outcome);
    this.post({ type: "run", id, task });
    try {
      return await outcome.promise;
    } finally {
      signal.removeEventListener("abort", onAbort);
      this.running.delete(id);
    }
  }

  /** Given up at once; a program that holds the thread (`execSync`) may hold it for longer than anybody waits. */
  async terminate(reason: string): Promise<void> {
    this.onGone(reason);
    await Promise.race([this.worker.terminate(), sleep(deadlineMs(endSeconds), undefined, { ref: false })]);
  }

  private post(message: ToWorker): void {
    if (!this.isGone) this.worker.postMessage(message);
  }

  private onMessage(message: FromWorker): void {
    if (this.isGone) return;
    if (message.type === "ready") this.loaded.resolve();
    else if (message.type === "failed") this.loaded.reject(new RunnerError(message.message, message));
    else if (message.type === "done") this.running.get(message.id)?.resolve(message.outcome);
    else if (message.type === "acquire") this.acquire(message);
    else if (message.type === "release") this.leases.get(message.call)?.(message.failed);
    else if (message.type === "warning") this.warn(message.kind, message.text);
    else this.onPong(message.lateSeconds);
  }

  private async acquire({ call, sessionId, timeoutSeconds, pool }: AcquireMessage): Promise<void> {
    const controller = new AbortController();
    let release: EngineLease["release"] = () => controller.abort(new Error("taken back"));
    this.leases.set(call, (failed) => {
      this.leases.delete(call);
      release(failed);
    });
    try {
      const { release: end, ...lease } = await this.router.acquire(sessionId, timeoutSeconds, controller.signal, pool);
      release = end;
      if (!this.leases.has(call)) return end();
      this.post({ type: "lease", call, ...lease });
    } catch (error) {
      this.leases.delete(call);
      this.post({ type: "refused", call, message: messageOf(error) });
    }
  }

  /** A thread that an endless loop holds cannot answer: counted in pings, so that a busy controller blames nobody. */
  private ping(): void {
    if (this.unanswered++ < pingsPerStall) this.post({ type: "ping", at: Date.now() });
    else this.terminate(`the agent blocked its thread for ${this.setup.limits.turnSeconds} s`);
  }

  private onPong(lateSeconds: number): void {
    this.unanswered = 0;
    if (lateSeconds < lagSeconds) return;
    this.warn("lag", `agent code held its thread for ${lateSeconds.toFixed(1)} s; the thread's other rollouts waited`);
  }

  private onGone(reason: string): void {
    if (this.isGone) return;
    this.isGone = true;
    this.death ||= reason;
    this.end.resolve(this.death);
    clearInterval(this.pinger);
    this.loaded.reject(new RunnerError(this.death, { position: { file: this.setup.agent.name } }));
    for (const release of [...this.leases.values()]) release();
    for (const { reject } of this.running.values()) reject(new RolloutFailure("worker", this.death));
  }
}

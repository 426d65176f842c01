/** The entry of an agent's thread: runs many rollouts side by side on one event loop. `pool.ts` is the other end. */
import { parentPort, workerData } from "node:worker_threads";
import { Tokenizer } from "../data/tokenizer.ts";
import { type Deferred, deferred } from "../deferred.ts";
import { EngineClient } from "../engines/client.ts";
import type { EnginePool } from "../engines/router.ts";
import type { EngineLease, Router } from "../engines/types.ts";
import { ExitCode, messageOf, RunnerError, type SourcePosition } from "../errors.ts";
import { type AgentSource, loadAgent, type RunRollout } from "./load.ts";
import type { RolloutTask, RunSettings } from "./rollout.ts";
import type { FailedRollout, Rollout } from "./types.ts";

/** What the thread is started with. */
export interface WorkerSetup extends RunSettings {
  agent: AgentSource;
}

/** From the pool. `call` numbers a lease. */
export type ToWorker =
  | { type: "run"; id: number; task: RolloutTask }
  | { type: "abort"; id: number }
  | ({ type: "lease"; call: number } & Omit<EngineLease, "release">)
  | { type: "refused"; call: number; message: string }
  | { type: "ping"; at: number };

/** To the pool. `release` also takes back an `acquire` that has no answer yet. */
export type FromWorker =
  | { type: "ready" }
  | { type: "failed"; message: string; position?: SourcePosition; fix?: string; exitCode: number }
  | { type: "done"; id: number; outcome: Rollout | FailedRollout }
  | { type: "acquire"; call: number; sessionId: string; timeoutSeconds: number; pool?: EnginePool }
  | { type: "release"; call: number; failed?: boolean }
  | { type: "warning"; kind: string; text: string }
  | { type: "pong"; lateSeconds: number };

const port = parentPort!;
const setup: WorkerSetup = workerData;
const waiting = new Map<number, Deferred<EngineLease>>();
const running = new Map<number, AbortController>();
let calls = 0;

function post(message: FromWorker): void {
  port.postMessage(message);
}

const router: Router = {
  acquire(sessionId, timeoutSeconds, signal, pool) {
    if (signal?.aborted) return Promise.reject(new Error("aborted"));
    const call = calls++;
    const waiter = deferred<EngineLease>();
    const onAbort = () => {
      post({ type: "release", call });
      waiter.reject(new Error("aborted"));
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    waiting.set(call, waiter);
    post({ type: "acquire", call, sessionId, timeoutSeconds, pool });
    return waiter.promise.finally(() => {
      waiting.delete(call);
      signal?.removeEventListener("abort", onAbort);
    });
  },
};

async function load(): Promise<RunRollout> {
  const { agent, tokenizerFolder, chatTemplate, eosTokenIds, runId, seed, limits } = setup;
  const tokenizer = await Tokenizer.load(tokenizerFolder, { chatTemplate, eosTokenIds });
  const client = new EngineClient();
  const context = { runId, seed, tokenizer, limits, router, generate: client.generate.bind(client) };
  return loadAgent(agent, context, (kind, text) => post({ type: "warning", kind, text }));
}

async function runTask(id: number, task: RolloutTask, run: RunRollout): Promise<void> {
  const controller = new AbortController();
  running.set(id, controller);
  const outcome = await run(task, controller.signal);
  running.delete(id);
  post({ type: "done", id, outcome });
}

try {
  const run = await load();
  port.on("message", (message: ToWorker) => {
    if (message.type === "run") runTask(message.id, message.task, run);
    else if (message.type === "abort") running.get(message.id)?.abort();
    else if (message.type === "ping") post({ type: "pong", lateSeconds: (Date.now() - message.at) / 1000 });
    else if (message.type === "refused") waiting.get(message.call)?.reject(new Error(message.message));
    else {
      const { type: _, call, ...lease } = message;
      waiting.get(call)?.resolve({ ...lease, release: (failed) => post({ type: "release", call, failed }) });
    }
  });
  post({ type: "ready" });
} catch (error) {
  const { position, fix, exitCode = ExitCode.failed } = error instanceof RunnerError ? error : {};
  post({ type: "failed", message: messageOf(error), position, fix, exitCode });
}

/** The entry of an agent's thread: runs many rollouts side by side on one event loop. `pool.ts` is the other end. */
import { dirname } from "node:path";
import { pathToFileURL } from "node:url";
import { parentPort, workerData } from "node:worker_threads";
import { Tokenizer } from "../data/tokenizer.ts";
import { EngineClient } from "../engines/client.ts";
import type { EngineLease, Router } from "../engines/types.ts";
import { ExitCode, messageOf, RunnerError, type SourcePosition, usageError } from "../errors.ts";
import { agentClass } from "./agent-class.ts";
import { type RolloutContext, type RolloutLimits, type RolloutTask, runEnvRollout } from "./env-runner.ts";
import type { Env, FailedRollout, Rollout } from "./types.ts";

/** What the thread is started with. */
export interface WorkerSetup {
  bundle: string;
  agentPath: string;
  tokenizerFolder: string;
  chatTemplate: string | null;
  eosTokenIds: number[];
  runId: string;
  seed: number;
  limits: RolloutLimits;
}

/** From the pool. `call` numbers a lease. */
export type ToWorker =
  | { type: "run"; id: number; task: RolloutTask }
  | { type: "abort"; id: number }
  | { type: "lease"; call: number; url: string; engine: number }
  | { type: "refused"; call: number; message: string }
  | { type: "ping" };

/** To the pool. `release` also takes back an `acquire` that has no answer yet. */
export type FromWorker =
  | { type: "ready" }
  | { type: "failed"; message: string; position?: SourcePosition; fix?: string; exitCode: number }
  | { type: "done"; id: number; outcome: Rollout | FailedRollout }
  | { type: "acquire"; call: number; sessionId: string; timeoutSeconds: number }
  | { type: "release"; call: number }
  | { type: "pong" };

const port = parentPort!;
const setup = workerData as WorkerSetup;
const waiting = new Map<number, { resolve: (lease: EngineLease) => void; reject: (error: Error) => void }>();
const running = new Map<number, AbortController>();
let calls = 0;

function post(message: FromWorker, transfer: ArrayBuffer[] = []): void {
  port.postMessage(message, transfer);
}

/** The controller's router, asked by message. */
const router: Router = {
  acquire(sessionId, timeoutSeconds, signal) {
    const call = calls++;
    return new Promise<EngineLease>((resolve, reject) => {
      const onAbort = () => {
        waiting.delete(call);
        post({ type: "release", call });
        reject(new Error("aborted"));
      };
      if (signal?.aborted) return reject(new Error("aborted"));
      signal?.addEventListener("abort", onAbort, { once: true });
      const settled = () => signal?.removeEventListener("abort", onAbort);
      waiting.set(call, {
        resolve: (lease) => {
          settled();
          resolve(lease);
        },
        reject: (error) => {
          settled();
          reject(error);
        },
      });
      post({ type: "acquire", call, sessionId, timeoutSeconds });
    });
  },
};

async function load(): Promise<{ createEnv: () => Env; context: RolloutContext }> {
  const { bundle, agentPath, tokenizerFolder, chatTemplate, eosTokenIds, runId, seed, limits } = setup;
  const tokenizer = await Tokenizer.load(tokenizerFolder, { chatTemplate, eosTokenIds });
  const client = new EngineClient();
  const generate: RolloutContext["generate"] = (url, request, options) => client.generate(url, request, options);
  const context = { runId, seed, tokenizer, limits, router, generate, locate };
  return { createEnv: await importAgent(bundle, agentPath), context };
}

async function importAgent(bundle: string, agentPath: string): Promise<() => Env> {
  const position = { file: agentPath };
  const module = await import(pathToFileURL(bundle).href).catch((error) => {
    const where = locate(error);
    throw usageError(`the agent failed while loading${where ? ` at ${where}` : ""}: ${messageOf(error)}`, { position });
  });
  const Agent = agentClass(module, agentPath);
  return () => new Agent();
}

/** `file:line` of the agent's own code that an error passed through first. */
function locate(error: unknown): string | undefined {
  const stack = error instanceof Error ? (error.stack ?? "") : "";
  for (const [, file, line] of stack.matchAll(/\(?(?:file:\/\/)?(\/[^():\n]+):(\d+):\d+\)?$/gm)) {
    if (file!.startsWith(dirname(setup.agentPath)) && !file!.includes("node_modules")) return `${file}:${line}`;
  }
  return undefined;
}

async function runTask(id: number, task: RolloutTask, loaded: Awaited<ReturnType<typeof load>>): Promise<void> {
  const controller = new AbortController();
  running.set(id, controller);
  const outcome = await runEnvRollout(loaded.createEnv, task, loaded.context, controller.signal);
  running.delete(id);
  const segments = "segments" in outcome ? outcome.segments : [];
  const arrays = segments.flatMap(({ tokens, mask, logprobs, versions }) => [tokens, mask, logprobs, versions]);
  post(
    { type: "done", id, outcome },
    arrays.map((array) => array.buffer as ArrayBuffer),
  );
}

try {
  const loaded = await load();
  port.on("message", (message: ToWorker) => {
    if (message.type === "run") runTask(message.id, message.task, loaded);
    else if (message.type === "abort") running.get(message.id)?.abort();
    else if (message.type === "ping") post({ type: "pong" });
    else {
      const waiter = waiting.get(message.call);
      waiting.delete(message.call);
      if (message.type === "refused") waiter?.reject(new Error(message.message));
      else {
        const { call, url, engine } = message;
        waiter?.resolve({ url, engine, release: () => post({ type: "release", call }) });
      }
    }
  });
  post({ type: "ready" });
} catch (error) {
  const known = error instanceof RunnerError ? error : null;
  const { position, fix, exitCode = ExitCode.failed } = known ?? {};
  post({ type: "failed", message: messageOf(error), position, fix, exitCode });
}

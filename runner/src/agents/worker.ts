/** The entry of an agent's thread: runs many rollouts side by side on one event loop. `pool.ts` is the other end. */
import { dirname } from "node:path";
import { pathToFileURL } from "node:url";
import { parentPort, workerData } from "node:worker_threads";
import { Tokenizer } from "../data/tokenizer.ts";
import { type Deferred, deferred } from "../deferred.ts";
import { EngineClient } from "../engines/client.ts";
import type { EngineLease, Router } from "../engines/types.ts";
import { ExitCode, messageOf, RunnerError, type SourcePosition, usageError } from "../errors.ts";
import { agentClass } from "./agent-class.ts";
import { type ClientAgent, runClientRollout } from "./client-runner.ts";
import { type CommandAgentOptions, commandAgent } from "./command-agent.ts";
import { runEnvRollout } from "./env-runner.ts";
import type { RolloutContext, RolloutTask, RunSettings } from "./rollout.ts";
import type { ChatAgent, Env, FailedRollout, Rollout } from "./types.ts";

/** A class in a bundle, or the words of commands. */
export type AgentSource = { name: string } & (
  | { path: string; bundle: string }
  | Omit<CommandAgentOptions, "rewardSeconds">
);

/** What the thread is started with. */
export interface WorkerSetup extends RunSettings {
  agent: AgentSource;
}

/** From the pool. `call` numbers a lease. */
export type ToWorker =
  | { type: "run"; id: number; task: RolloutTask }
  | { type: "abort"; id: number }
  | { type: "lease"; call: number; url: string; engine: number }
  | { type: "refused"; call: number; message: string }
  | { type: "ping"; at: number };

/** To the pool. `release` also takes back an `acquire` that has no answer yet. */
export type FromWorker =
  | { type: "ready" }
  | { type: "failed"; message: string; position?: SourcePosition; fix?: string; exitCode: number }
  | { type: "done"; id: number; outcome: Rollout | FailedRollout }
  | { type: "acquire"; call: number; sessionId: string; timeoutSeconds: number }
  | { type: "release"; call: number }
  | { type: "warning"; kind: string; text: string }
  | { type: "pong"; lateSeconds: number };

/** Of an agent's commands at once, in one thread. */
const maxCommands = 32;

const port = parentPort!;
const setup: WorkerSetup = workerData;
const waiting = new Map<number, Deferred<EngineLease>>();
const running = new Map<number, AbortController>();
let calls = 0;

function post(message: FromWorker): void {
  port.postMessage(message);
}

const router: Router = {
  acquire(sessionId, timeoutSeconds, signal) {
    if (signal?.aborted) return Promise.reject(new Error("aborted"));
    const call = calls++;
    const waiter = deferred<EngineLease>();
    const onAbort = () => {
      post({ type: "release", call });
      waiter.reject(new Error("aborted"));
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    waiting.set(call, waiter);
    post({ type: "acquire", call, sessionId, timeoutSeconds });
    return waiter.promise.finally(() => {
      waiting.delete(call);
      signal?.removeEventListener("abort", onAbort);
    });
  },
};

type RunRollout = (task: RolloutTask, signal: AbortSignal) => Promise<Rollout | FailedRollout>;

async function load(): Promise<RunRollout> {
  const { agent, tokenizerFolder, chatTemplate, eosTokenIds, runId, seed, limits } = setup;
  const tokenizer = await Tokenizer.load(tokenizerFolder, { chatTemplate, eosTokenIds });
  const client = new EngineClient();
  const generate = client.generate.bind(client);
  const context = { runId, seed, tokenizer, limits, router, generate, locate };
  if ("command" in agent) {
    const command = commandAgent({ ...agent, rewardSeconds: limits.rewardSeconds });
    return atMost(maxCommands, await throughGateway(command, context));
  }
  const Agent = await importAgent(agent.bundle, agent.path);
  if ("run" in Agent.prototype) return throughGateway((chat) => (new Agent() as ChatAgent).run(chat), context);
  return (task, signal) => runEnvRollout(() => new Agent() as Env, task, context, signal);
}

/** Programs cost more than promises do: `most` run, and the time of those that wait has not begun. */
function atMost(most: number, run: RunRollout): RunRollout {
  const queue: (() => void)[] = [];
  let free = most;
  return async (task, signal) => {
    if (free > 0) free--;
    else await new Promise<void>((resolve) => queue.push(resolve));
    const outcome = await run(task, signal);
    const next = queue.shift();
    if (next) next();
    else free++;
    return outcome;
  };
}

async function throughGateway(agent: ClientAgent, context: RolloutContext): Promise<RunRollout> {
  const { Gateway } = await import("./gateway.ts"); // an Env needs no server
  const gateway = await Gateway.start(context.tokenizer, (kind, text) => post({ type: "warning", kind, text }));
  return (task, signal) => runClientRollout(agent, gateway, task, context, signal);
}

async function importAgent(bundle: string, path: string): Promise<ReturnType<typeof agentClass>> {
  const position = { file: path };
  const module = await import(pathToFileURL(bundle).href).catch((error) => {
    const where = locate(error);
    throw usageError(`the agent failed while loading${where ? ` at ${where}` : ""}: ${messageOf(error)}`, { position });
  });
  return agentClass(module, path);
}

/** `file:line` of the agent's own code that an error passed through first. */
function locate(error: unknown): string | undefined {
  if ("command" in setup.agent) return undefined;
  const folder = dirname(setup.agent.path);
  const stack = error instanceof Error ? (error.stack ?? "") : "";
  for (const [, file, line] of stack.matchAll(/\(?(?:file:\/\/)?(\/[^():\n]+):(\d+):\d+\)?$/gm)) {
    if (file!.startsWith(folder) && !file!.includes("node_modules")) return `${file}:${line}`;
  }
  return undefined;
}

async function runTask(id: number, task: RolloutTask, runRollout: RunRollout): Promise<void> {
  const controller = new AbortController();
  running.set(id, controller);
  const outcome = await runRollout(task, controller.signal);
  running.delete(id);
  post({ type: "done", id, outcome });
}

try {
  const runRollout = await load();
  port.on("message", (message: ToWorker) => {
    if (message.type === "run") runTask(message.id, message.task, runRollout);
    else if (message.type === "abort") running.get(message.id)?.abort();
    else if (message.type === "ping") post({ type: "pong", lateSeconds: (Date.now() - message.at) / 1000 });
    else if (message.type === "refused") waiting.get(message.call)?.reject(new Error(message.message));
    else {
      const { call, url, engine } = message;
      waiting.get(call)?.resolve({ url, engine, release: () => post({ type: "release", call }) });
    }
  });
  post({ type: "ready" });
} catch (error) {
  const { position, fix, exitCode = ExitCode.failed } = error instanceof RunnerError ? error : {};
  post({ type: "failed", message: messageOf(error), position, fix, exitCode });
}

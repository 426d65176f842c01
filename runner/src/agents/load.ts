import { readFileSync } from "node:fs";
import { findSourceMap } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { messageOf, usageError } from "../errors.ts";
import { agentClass } from "./agent-class.ts";
import { type ClientAgent, runClientRollout } from "./client-runner.ts";
import { type CommandAgentOptions, commandAgent } from "./command-agent.ts";
import { runEnvRollout } from "./env-runner.ts";
import { gradeRollout } from "./graders/grade.ts";
import { type RolloutContext, type RolloutTask, settle, type Warn } from "./rollout.ts";
import type { ChatAgent, Env, FailedRollout, Grader, Rollout } from "./types.ts";

/** A class in a bundle, or the words of commands. */
export type AgentSource = { name: string } & (
  | { path: string; bundle: string; onlyEnv?: boolean }
  | Omit<CommandAgentOptions, "rewardSeconds">
);

export type RunRollout = (task: RolloutTask, signal: AbortSignal) => Promise<Rollout | FailedRollout>;

/** Of an agent's commands at once, in one thread. */
const maxCommands = 32;

/** An agent of any kind, as a worker's thread runs it, and `replay`. Rejects with what is wrong with its file. */
export async function loadAgent(
  source: AgentSource,
  shared: Omit<RolloutContext, "locate">,
  warn: Warn,
): Promise<RunRollout> {
  if ("command" in source) {
    const command = commandAgent({ ...source, rewardSeconds: shared.limits.rewardSeconds });
    return atMost(maxCommands, await throughGateway(command, { ...shared, locate: () => undefined }, warn));
  }
  const module = await importAgent(source.bundle, source.path);
  const Agent = agentClass(module, source.path);
  const takesReplies = "run" in Agent.prototype ? Agent.prototype.run : Agent.prototype.step;
  const place = sourceOf(source.bundle, takesReplies);
  const context: RolloutContext = { ...shared, locate: locator(source.path), source: place };
  if (source.onlyEnv && "run" in Agent.prototype) {
    const message = "run.deterministic needs an Env: a ChatAgent's own client may call the model in any order";
    throw usageError(message, { position: { file: source.path }, fix: "write `export default class extends Env`" });
  }
  const run: RunRollout =
    "run" in Agent.prototype
      ? await throughGateway((chat) => (new Agent() as ChatAgent).run(chat), context, warn)
      : (task, signal) => runEnvRollout(() => new Agent() as Env, task, context, signal);
  const grade = graderOf(module);
  if (!grade) return run;
  return async (task, signal) => {
    const outcome = await run(task, signal);
    if (!("segments" in outcome)) return outcome;
    return settle(task, context.runId, () => gradeRollout(grade, outcome, task.row, context));
  };
}

async function throughGateway(agent: ClientAgent, context: RolloutContext, warn: Warn): Promise<RunRollout> {
  const { Gateway } = await import("./gateway.ts"); // an Env needs no server
  const gateway = await Gateway.start(context.tokenizer, warn);
  return (task, signal) => runClientRollout(agent, gateway, task, context, signal);
}

/** Programs cost more than promises do: `most` run, and the time of those that wait has not begun. */
function atMost(most: number, run: RunRollout): RunRollout {
  const queue: (() => void)[] = [];
  let free = most;
  return async (task, signal) => {
    if (free > 0) free--;
    else await new Promise<void>((resolve) => queue.push(resolve));
    try {
      return await run(task, signal);
    } finally {
      const next = queue.shift();
      if (next) next();
      else free++;
    }
  };
}

async function importAgent(bundle: string, path: string): Promise<{ default?: unknown }> {
  return import(pathToFileURL(bundle).href).catch((error) => {
    const where = locator(path)(error);
    const what = `the agent failed while loading${where ? ` at ${where}` : ""}: ${messageOf(error)}`;
    throw usageError(what, { position: { file: path } });
  });
}

/** `file:line` where the user wrote a function of a bundle; undefined where no source map says it. */
function sourceOf(bundle: string, written: (...given: never[]) => unknown): string | undefined {
  const code = readFileSync(bundle, "utf8");
  const at = code.indexOf(written.toString());
  const lines = code.slice(0, at).split("\n");
  const entry = findSourceMap(bundle)?.findEntry(lines.length - 1, lines.at(-1)!.length);
  return at >= 0 && entry && "originalLine" in entry
    ? `${fileURLToPath(entry.originalSource)}:${entry.originalLine + 1}`
    : undefined;
}

/** The function that a file exports as `grade`; CommonJS has all its exports in the default one. */
export function graderOf(module: { default?: unknown; grade?: unknown }): Grader | undefined {
  const grade = module.grade ?? (module.default as { grade?: unknown } | undefined)?.grade;
  return typeof grade === "function" ? (grade as Grader) : undefined;
}

/** Names `file:line` of the agent's own code that an error passed through first. */
export function locator(path: string): RolloutContext["locate"] {
  const folder = join(dirname(path), "/");
  return (error) => {
    const stack = error instanceof Error ? (error.stack ?? "") : "";
    for (const [, file, line] of stack.matchAll(/\(?(?:file:\/\/)?(\/[^():\n]+):(\d+):\d+\)?$/gm)) {
      if (file!.startsWith(folder) && !file!.includes("node_modules")) return `${file}:${line}`;
    }
    return undefined;
  };
}

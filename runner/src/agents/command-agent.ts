import { join } from "node:path";
import { deadlineMs } from "../deadline.ts";
import type { ClientAgent } from "./client-runner.ts";
import { RolloutFailure, readResult } from "./rollout.ts";
import { cleanEnvironment, type Ended, inFolder, runProgram } from "./subprocess.ts";
import type { ChatContext, ChatResult } from "./types.ts";

export interface CommandAgentOptions {
  command: string[];
  /** Null: the command says its own reward. */
  grader: string[] | null;
  /** In which each rollout gets a folder of its own. */
  folder: string;
  rewardSeconds: number;
}

/** Of what it wrote to standard error: enough for a traceback. */
const shownLines = 20;

/**
 * A program, started once a rollout in an empty folder of its own, with the model's address in its environment and the
 * row as JSON on its standard input.
 */
export function commandAgent(options: CommandAgentOptions): ClientAgent {
  return (context) => inFolder(join(options.folder, "rollout-"), (folder) => runIn(folder, context, options));
}

async function runIn(folder: string, context: ChatContext, options: CommandAgentOptions): Promise<ChatResult> {
  const { command, grader, rewardSeconds } = options;
  const environment = environmentOf(folder, context);
  const run = (words: string[], given: object, signal: AbortSignal) =>
    runProgram(words, environment, { input: `${JSON.stringify(given)}\n`, signal });
  const agent = await run(command, context.row, context.signal);
  if (agent.code !== 0) throw new Error(`${command[0]} ${endOf(agent)}`);
  if (!grader) return resultOf(agent, command[0]!);
  // A grader that fails says nothing of the policy.
  const late = AbortSignal.timeout(deadlineMs(rewardSeconds));
  const input = { row: context.row, output: agent.output, errors: agent.errors };
  const graded = await run(grader, input, AbortSignal.any([context.signal, late]));
  if (late.aborted) throw new RolloutFailure("grader_timeout", `waited ${rewardSeconds} s for the grader ${grader[0]}`);
  if (graded.code !== 0) throw new RolloutFailure("reward", `the grader ${grader[0]} ${endOf(graded)}`);
  return resultOf(graded, grader[0]!);
}

function environmentOf(folder: string, { baseUrl, apiKey, model }: ChatContext) {
  const openai = { OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model };
  // Its clients add the /v1 themselves.
  const anthropic = { ANTHROPIC_BASE_URL: baseUrl.replace(/\/v1$/, ""), ANTHROPIC_API_KEY: apiKey };
  return { ...cleanEnvironment(folder), ...openai, ...anthropic, ANTHROPIC_MODEL: model };
}

function endOf({ code, errors }: Ended): string {
  const last = errors.trim().split("\n").slice(-shownLines).join("\n");
  return `${code === null ? "was killed" : `ended with code ${code}`}${last ? `: ${last}` : ""}`;
}

/** The last line that looks like an object or is a number. */
function resultOf({ output }: Ended, program: string): ChatResult {
  const line = output.split("\n").findLast((text) => /^\s*(\{|-?\d+(\.\d+)?([eE][-+]?\d+)?\s*$)/.test(text)) ?? "";
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    const shown = line === "" ? "" : `: ${line.slice(0, 200)}`;
    throw new RolloutFailure("reward", `${program} printed no line of JSON with its reward${shown}`);
  }
  const result = (typeof value === "number" ? { reward: value } : value) as ChatResult;
  return readResult(result, program, '{"reward": NUMBER, "score"?, "info"?}');
}

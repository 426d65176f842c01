import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Readable } from "node:stream";
import { deadlineMs } from "../deadline.ts";
import type { ClientAgent } from "./client-runner.ts";
import { RolloutFailure, readResult } from "./rollout.ts";
import type { ChatContext, ChatResult } from "./types.ts";

export interface CommandAgentOptions {
  command: string[];
  /** Null: the command says its own reward. */
  grader: string[] | null;
  /** In which each rollout gets a folder of its own. */
  folder: string;
  rewardSeconds: number;
}

interface Ended {
  /** What it printed, the last megabyte. */
  output: string;
  errors: string;
  /** Null where a signal ended it. */
  code: number | null;
}

/** Characters of each stream that are kept: the last ones. */
const keptOutput = 1024 * 1024;
/** Of what it wrote to standard error: enough for a traceback. */
const shownLines = 20;
/** For output that is under way when the program has ended; a process that left its group may hold it open. */
const drainSeconds = 2;

/**
 * A program, started once a rollout in an empty folder of its own, with the model's address in its environment and the
 * row as JSON on its standard input.
 */
export function commandAgent(options: CommandAgentOptions): ClientAgent {
  return async (context) => {
    const folder = await mkdtemp(join(options.folder, "rollout-"));
    try {
      return await runIn(folder, context, options);
    } finally {
      // What is left goes with the pool's folder.
      await rm(folder, { recursive: true, force: true, maxRetries: 3 }).catch(() => {});
    }
  };
}

async function runIn(folder: string, context: ChatContext, options: CommandAgentOptions): Promise<ChatResult> {
  const { command, grader, rewardSeconds } = options;
  const environment = environmentOf(folder, context);
  const agent = await runCommand(command, environment, context.row, context.signal);
  if (agent.code !== 0) throw new Error(`${command[0]} ${endOf(agent)}`);
  if (!grader) return resultOf(agent, command[0]!);
  // A grader that fails says nothing of the policy.
  const late = AbortSignal.timeout(deadlineMs(rewardSeconds));
  const input = { row: context.row, output: agent.output, errors: agent.errors };
  const graded = await runCommand(grader, environment, input, AbortSignal.any([context.signal, late]));
  if (late.aborted) throw new RolloutFailure("reward", `waited ${rewardSeconds} s for the grader ${grader[0]}`);
  if (graded.code !== 0) throw new RolloutFailure("reward", `the grader ${grader[0]} ${endOf(graded)}`);
  return resultOf(graded, grader[0]!);
}

/** Nothing of the runner's own environment but what finds programs and names the language. */
function environmentOf(HOME: string, { baseUrl, apiKey, model }: ChatContext) {
  const { PATH, LANG, LC_ALL, TZ } = process.env;
  const openai = { OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model };
  // Its clients add the /v1 themselves.
  const anthropic = { ANTHROPIC_BASE_URL: baseUrl.replace(/\/v1$/, ""), ANTHROPIC_API_KEY: apiKey };
  return { PATH, LANG, LC_ALL, TZ, HOME, TMPDIR: HOME, ...openai, ...anthropic, ANTHROPIC_MODEL: model };
}

/** Kills the group once descriptor 3 closes: when the process that holds its other end is gone, however that came. */
const guarded = '(read -r _ <&3; kill -KILL -$$) >/dev/null 2>&1 & exec "$@" 3<&-';

/** `signal` kills it and all that it started. */
async function runCommand(
  words: string[],
  env: ReturnType<typeof environmentOf>,
  input: object,
  signal: AbortSignal,
): Promise<Ended> {
  const child = spawn("/bin/sh", ["-c", guarded, "sh", ...words], {
    cwd: env.HOME,
    env,
    detached: true,
    stdio: ["pipe", "pipe", "pipe", "pipe"],
  });
  const closed = once(child, "close");
  if (child.pid === undefined) await closed; // says why
  const kill = () => killGroup(child.pid!);
  let drain: NodeJS.Timeout | undefined;
  child.once("exit", () => {
    kill(); // what it left running would hold its output open
    drain = setTimeout(() => {
      for (const stream of child.stdio) stream?.destroy();
    }, deadlineMs(drainSeconds));
  });
  signal.addEventListener("abort", kill, { once: true });
  if (signal.aborted) kill();
  const [output, errors] = [collect(child.stdout!), collect(child.stderr!)];
  child.stdin!.on("error", () => {}); // a program need not read its row
  child.stdin!.end(`${JSON.stringify(input)}\n`);
  const [code] = await closed;
  clearTimeout(drain);
  signal.removeEventListener("abort", kill);
  return { output: output(), errors: errors(), code };
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // It is gone.
  }
}

function collect(stream: Readable): () => string {
  let text = "";
  stream.setEncoding("utf8").on("data", (chunk) => {
    text = (text + chunk).slice(-keptOutput);
  });
  return () => text;
}

function endOf({ code, errors }: Ended): string {
  const last = errors.trim().split("\n").slice(-shownLines).join("\n");
  return `${code === null ? "was killed" : `ended with code ${code}`}${last ? `: ${last}` : ""}`;
}

/** The last line that looks like an object or a number. */
function resultOf({ output }: Ended, program: string): ChatResult {
  const line = output.split("\n").findLast((text) => /^\s*[{\d-]/.test(text)) ?? "";
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

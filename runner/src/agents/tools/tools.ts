import { tmpdir } from "node:os";
import { join } from "node:path";
import { deadlineMs } from "../../deadline.ts";
import { cleanEnvironment, inFolder, runProgram } from "../subprocess.ts";

export interface ToolLimits {
  /** Seconds of a call (10). */
  timeout?: number;
  /** MiB of address space (1024). */
  memory?: number;
  /** Characters of an answer: the last are kept (2048). */
  output?: number;
  /** Leaves the network to it (false): else it has none, where the system allows to take it away. */
  network?: boolean;
}

export interface Tool {
  /** As OpenAI's clients and chat templates take it. */
  schema: { type: "function"; function: { name: string; description: string; parameters: object } };
  /**
   * Runs a call: its arguments, or the whole call with its `arguments`, as an object or as JSON. Resolves with what the
   * policy is to read; what is wrong with the call, or what it meets, is such a text. Rejects where nothing can run.
   */
  call(given: unknown, signal?: AbortSignal): Promise<string>;
}

/** Bytes that one argument of a program may have, less room to spare. */
const longestCode = 100_000;
const startSeconds = 20;

/** Runs Python, apart from what is installed for the user and from the folder that it runs in. */
export function pythonTool(limits: ToolLimits = {}): Tool {
  const description = "Runs a Python program and answers with what it printed.";
  return programTool("python", description, "code", ["python3", "-I", "-c"], limits);
}

export function shellTool(limits: ToolLimits = {}): Tool {
  const description = "Runs a command line in a POSIX shell and answers with what it printed.";
  return programTool("shell", description, "command", ["sh", "-c"], limits);
}

function programTool(name: string, description: string, parameter: string, words: string[], limits: ToolLimits): Tool {
  const { timeout = 10, memory: megabytes = 1024, output: characters = 2048, network = false } = limits;
  const parameters = { type: "object", properties: { [parameter]: { type: "string" } }, required: [parameter] };
  let prefix: Promise<string[]> | undefined;
  async function call(given: unknown, signal?: AbortSignal): Promise<string> {
    const code = argumentOf(given, parameter);
    if (code === null) return `error: the arguments must be a JSON object with the text "${parameter}"`;
    if (Buffer.byteLength(code) > longestCode || code.includes("\0"))
      return "error: too long, or with a null character";
    prefix ??= isolation(words, network);
    const before = await prefix.catch((error) => {
      prefix = undefined; // the next call may find room
      throw error;
    });
    const late = AbortSignal.timeout(deadlineMs(timeout));
    const ended = await inFolder(join(tmpdir(), "molt-tool-"), (folder) => {
      const stop = AbortSignal.any(signal ? [signal, late] : [late]);
      return runProgram([...before, ...words, code], cleanEnvironment(folder), { signal: stop, megabytes });
    });
    const text = (ended.output + ended.errors).trimEnd();
    const kept = text.length > characters ? `[…]${text.slice(-characters)}` : text;
    if (ended.code === 0) return kept;
    const end = late.aborted ? `killed after ${timeout} s` : ended.code === null ? "killed" : `exit code ${ended.code}`;
    return `${kept}\n[${end}]`.trimStart();
  }
  return { schema: { type: "function", function: { name, description, parameters } }, call };
}

/**
 * What goes before a program's words: that which takes its network away, and ends with it whatever it started, sessions
 * of their own too, where the system allows it.
 */
async function isolation(words: string[], network: boolean): Promise<string[]> {
  for (const prefix of [["unshare", network ? "-rpf" : "-rnpf", "--kill-child", "--"], []]) {
    const signal = AbortSignal.timeout(deadlineMs(startSeconds));
    const { code } = await runProgram([...prefix, ...words, ""], cleanEnvironment(tmpdir()), { signal });
    if (code !== 0) continue;
    if (!network && prefix.length === 0)
      console.error(`warning: ${words[0]} has the network: unshare -rnpf fails here`);
    return prefix;
  }
  throw new Error(`a tool cannot start ${words.join(" ")}`);
}

function argumentOf(given: unknown, parameter: string): string | null {
  try {
    const input = typeof given === "string" ? JSON.parse(given) : given;
    if (input?.arguments !== undefined) return argumentOf(input.arguments, parameter);
    return typeof input?.[parameter] === "string" ? input[parameter] : null;
  } catch {
    return null;
  }
}

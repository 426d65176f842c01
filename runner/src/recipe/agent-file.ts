import { existsSync, statSync } from "node:fs";
import type { BuildFailure } from "esbuild";
import { type RunnerError, usageError } from "../errors.ts";

/** That the agent's file is there, parses with all it imports beside it, and has a default export. Runs nothing. */
export async function checkAgentFile(path: string): Promise<void> {
  const fail = (message: string, fix: string) => usageError(message, { position: { file: path }, fix });
  if (!existsSync(path)) {
    throw fail("train.agent_path: this file does not exist", "the path is taken relative to the recipe's folder");
  }
  if (statSync(path).isDirectory()) throw fail("train.agent_path: this is a directory", "name the file in it");
  if (!/\.[cm]?[jt]sx?$/.test(path)) {
    throw fail(
      "train.agent_path: this is not a TypeScript or JavaScript file",
      "a program in another language is an agent through train.agent_command",
    );
  }
  const { build } = await import("esbuild");
  const outcome = await build({
    entryPoints: [path],
    bundle: true,
    packages: "external",
    platform: "node",
    format: "esm",
    write: false,
    metafile: true,
    logLevel: "silent",
  }).catch((error: BuildFailure) => error);
  if (!("metafile" in outcome)) throw syntaxError(path, outcome);
  const [output] = Object.values(outcome.metafile.outputs);
  if (output?.exports.includes("default")) return;
  throw fail(
    "train.agent_path: this file has no default export",
    "write `export default class extends Env` or `extends ChatAgent` (both come from molt-runner)",
  );
}

function syntaxError(path: string, { message, errors = [] }: BuildFailure): RunnerError {
  const { text = message, location } = errors[0] ?? {};
  const { file, line, column } = location ?? { file: path, line: undefined, column: 0 };
  return usageError(`train.agent_path: ${text}`, { position: { file, line, column: column + 1 } });
}

import { existsSync, statSync } from "node:fs";
import type { BuildFailure } from "esbuild";
import { fileError, type RunnerError, usageError } from "../errors.ts";

/** That a user's file is there, parses with all it imports beside it, and has a default export. Runs nothing. */
export async function checkUserFile(path: string, key: string, exported: string): Promise<void> {
  const fail = (message: string, fix: string) => fileError(path, `${key}: ${message}`, fix);
  if (!existsSync(path))
    throw fail("this file does not exist", "a recipe's path is taken from its folder, a flag's from here");
  if (statSync(path).isDirectory()) throw fail("this is a directory", "name the file in it");
  if (!/\.[cm]?[jt]sx?$/.test(path)) {
    const fix = "a program in another language is an agent through train.agent_command";
    throw fail("this is not a TypeScript or JavaScript file", fix);
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
  if (!("metafile" in outcome)) throw syntaxError(path, key, outcome);
  const [output] = Object.values(outcome.metafile.outputs);
  if (output?.exports.includes("default")) return;
  throw fail("this file has no default export", `write ${exported}`);
}

function syntaxError(path: string, key: string, { message, errors = [] }: BuildFailure): RunnerError {
  const { text = message, location } = errors[0] ?? {};
  const { file, line, column } = location ?? { file: path, line: undefined, column: 0 };
  return usageError(`${key}: ${text}`, { position: { file, line, column: column + 1 } });
}

import { existsSync, statSync } from "node:fs";
import { type RunnerError, usageError } from "../errors.ts";

/** That the agent's file is there, parses with all it imports beside it, and has a default export. Runs nothing. */
export async function checkAgentFile(path: string): Promise<void> {
  const fail = (message: string, fix: string) => usageError(message, { position: { file: path }, fix });
  if (!existsSync(path)) {
    throw fail("train.agent_path: this file does not exist", "the path is taken relative to the recipe's folder");
  }
  if (statSync(path).isDirectory()) throw fail("train.agent_path: this is a directory", "name the file in it");
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
  }).catch((error: { errors?: BuildMessage[] }) => error);
  if (!("metafile" in outcome)) throw syntaxError(path, outcome.errors ?? []);
  const [output] = Object.values(outcome.metafile.outputs);
  if (output?.exports.includes("default")) return;
  throw fail(
    "train.agent_path: this file has no default export",
    "write `export default class extends Env` (Env comes from molt-runner)",
  );
}

interface BuildMessage {
  text: string;
  location?: { file: string; line: number; column: number } | null;
}

function syntaxError(path: string, [first]: BuildMessage[]): RunnerError {
  const place = first?.location;
  const position = place ? { file: place.file, line: place.line, column: place.column + 1 } : { file: path };
  return usageError(`train.agent_path: ${first?.text ?? "this file cannot be bundled"}`, { position });
}

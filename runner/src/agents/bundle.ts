import { existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { type BuildFailure, build, type Plugin } from "esbuild";
import { messageOf, RunnerError, usageError } from "../errors.ts";
import { inFolder } from "./subprocess.ts";

/** True where this runs from TypeScript (tests), false in `dist/`. */
const fromSource = import.meta.url.endsWith(".ts");
const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

/**
 * `import { Env } from "molt-runner"` in an agent means the running one, installed beside the agent or not: imported as
 * it is built, so that it finds its own packages.
 */
const ownLibrary: Plugin = {
  name: "molt-runner",
  setup: ({ onResolve }) => {
    const built = { path: new URL("./index.js", import.meta.url).href, external: true };
    onResolve({ filter: /^molt-runner$/ }, () => (fromSource ? { path: here("../index.ts") } : built));
  },
};

/** Bundles a user's file with what it imports; source maps keep its lines. `outfile` is written; `key` named it. */
export async function bundleAgent(agentPath: string, outfile: string, key = "train.agent_path"): Promise<void> {
  const position = { file: agentPath };
  if (!existsSync(agentPath)) {
    const fix = "name the file; the path is taken relative to the recipe's folder";
    throw usageError(`${key}: this file does not exist`, { position, fix });
  }
  if (agentPath.endsWith(".py")) {
    const fix = `start it as a program: train.agent_command: ["python", "${agentPath}"]`;
    throw usageError("train.agent_path: a Python agent cannot be loaded", { position, fix });
  }
  const url = JSON.stringify(pathToFileURL(agentPath).href);
  try {
    await build({
      ...nodeModule,
      entryPoints: [agentPath],
      outfile,
      external: ["*.node"],
      plugins: [ownLibrary],
      sourcemap: "inline",
      // What it reads beside itself, and CommonJS packages, are found from where the agent lies.
      define: { "import.meta.url": url },
      banner: {
        js: `import { createRequire as __createRequire } from "node:module"; const require = __createRequire(${url});`,
      },
    });
  } catch (error) {
    throw explain(error as BuildFailure, agentPath);
  }
}

/** A user's file, bundled and imported into this thread. */
export async function importUserFile(file: string, key?: string): Promise<{ default?: unknown }> {
  return inFolder(join(bundleRoot(tmpdir()), ".molt-agent-"), async (folder) => {
    const bundle = join(folder, "bundle.mjs");
    await bundleAgent(file, bundle, key);
    process.setSourceMapsEnabled(true);
    return import(pathToFileURL(bundle).href).catch((error) => {
      throw atUserLine(error, file, "this file failed while loading");
    });
  });
}

/** What a user's file threw, at its line that the error passed through first. */
export function atUserLine(error: unknown, file: string, what: string): RunnerError {
  const stack = error instanceof Error ? (error.stack ?? "") : "";
  const [, line, column] = (stack.split(file)[1] ?? "").match(/^:(\d+):(\d+)/) ?? [];
  const position = { file, ...(line && { line: Number(line), column: Number(column) }) };
  return new RunnerError(`${what}: ${messageOf(error)}`, { position, cause: error });
}

/** The worker's entry: built with the rest in `dist/`, made in `folder` where the runner runs from source. */
export async function workerEntry(folder: string): Promise<string> {
  if (!fromSource) return here("./agents/worker.js");
  const outfile = `${folder}/worker.mjs`;
  await build({ ...nodeModule, entryPoints: [here("./worker.ts")], outfile, packages: "external" });
  return outfile;
}

/** Where bundles are written: from source, a place from which packages are found. */
export function bundleRoot(temporary: string): string {
  return fromSource ? here("../../../node_modules") : temporary;
}

const nodeModule = { bundle: true, platform: "node", format: "esm", target: "node20", logLevel: "silent" } as const;

function explain({ errors = [], message }: BuildFailure, file: string): RunnerError {
  const [first, ...others] = errors;
  if (!first) return new RunnerError(`the agent cannot be bundled: ${message}`, { position: { file } });
  const { location: at, text } = first;
  const position = at ? { file: resolve(at.file), line: at.line, column: at.column + 1 } : { file };
  return usageError(`${text}${others.length > 0 ? ` (and ${others.length} more errors)` : ""}`, { position });
}

import { existsSync, realpathSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, relative, sep } from "node:path";
import { type CodeSource, roomLines } from "./code-map.ts";
import { CodeFolder } from "./folder.ts";

/** The folder of molt-runner that a program or a folder would load, or undefined where there is none. */
export function packageFolder(from: string): string | undefined {
  try {
    return dirname(createRequire(join(from, "from")).resolve("molt-runner/package.json"));
  } catch {
    return undefined;
  }
}

/**
 * The code that a reader in a folder has before them: the folder's own, and the runner's that it would load, or the
 * running one's; in a checkout of the runner that is in the folder already.
 */
export function codeSources(folder: string): CodeSource[] {
  const root = packageFolder(folder) ?? packageFolder(programFolder());
  const here = { folder: new CodeFolder(folder), title: "", rooms: roomLines(folder) };
  if (root === undefined) return [here];
  const path = relative(realPath(folder), root).split(sep);
  if (path[0] !== ".." && !path.includes("node_modules")) return [here];
  const title = "molt-runner/src/";
  // A build puts the checkout's AGENTS.md there.
  const lines = [...roomLines(join(root, "dist"))];
  const rooms = new Map(lines.map(([room, line]) => [room.replace("runner/src/", title), line]));
  return [here, { folder: new CodeFolder(join(root, "src")), title, rooms }];
}

/** Where the running program lies. */
function programFolder(): string {
  return dirname(realPath(process.argv[1] ?? ""));
}

/** Packages are found at their real paths; a command, or a folder, may have been named by a link. */
function realPath(path: string): string {
  return existsSync(path) ? realpathSync(path) : path;
}

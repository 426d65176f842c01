import { existsSync, realpathSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, relative, sep } from "node:path";
import { type CodeSource, roomLines } from "./code-map.ts";
import { CodeFolder, hashOf, readText } from "./folder.ts";
import type { CodeRecord } from "./record.ts";

/** `dist/code-map.json`, made at build time. */
export interface ShippedMap {
  /** Hash of the sources that made the records: others would make others. */
  maker: string;
  /** By the hash of a file's text. */
  records: Record<string, CodeRecord>;
  /** What the rooms are for, in a line each. */
  rooms: Record<string, string>;
}

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
  const map = readMap(root);
  const title = "molt-runner/src/";
  const rooms = Object.entries(map.rooms).map(([room, line]) => [title + room, line] as const);
  const known = new Map(Object.entries(map.records));
  return [here, { folder: new CodeFolder(join(root, "src"), known), title, rooms: new Map(rooms) }];
}

/** Where the running program lies. */
function programFolder(): string {
  return dirname(realPath(process.argv[1] ?? ""));
}

/** Packages are found at their real paths; a command, or a folder, may have been named by a link. */
function realPath(path: string): string {
  return existsSync(path) ? realpathSync(path) : path;
}

/** What a build writes from `runner/src/` and the AGENTS.md of the checkout; no path of the machine is in it. */
export function shippedMap(checkout: string): ShippedMap {
  const sources = join(checkout, "runner", "src");
  const files = new CodeFolder(sources).files();
  const rooms = [...roomLines(checkout)].filter(([room]) => room.startsWith("runner/src/"));
  return {
    maker: makerOf(sources),
    records: Object.fromEntries(files.map(({ path, record }) => [hashOf(readText(path)), record])),
    rooms: Object.fromEntries(rooms.map(([room, line]) => [room.slice("runner/src/".length), line])),
  };
}

/** Nothing where no build was made, or one by other sources than these. */
function readMap(root: string): ShippedMap {
  const map = JSON.parse(readText(join(root, "dist", "code-map.json")) || "null") as ShippedMap | null;
  return map?.maker === makerOf(join(root, "src")) ? map : { maker: "", records: {}, rooms: {} };
}

function makerOf(sources: string): string {
  const makers = ["syntax", "recipe-readers", "mentions", "record"].map((name) => join(sources, "code", `${name}.ts`));
  return hashOf(makers.map(readText).join(""));
}

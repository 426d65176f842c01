import { existsSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join, resolve } from "node:path";

export interface Located {
  /** Words, to be followed by a verb's. */
  command: string[];
  /** The package's folder; null where the setting names a command that does not tell. */
  folder: string | null;
}

/** The runner that the setting names, else the one installed nearest to a file; null where there is none. */
export function locateRunner(file: string, root: string, setting: string): Located | null {
  const words = settingWords(setting, root);
  if (words.length > 0) {
    const script = words.find((word) => existsSync(word));
    return { command: words, folder: script === undefined ? null : packageAbove(realpathSync(script)) };
  }
  const folder = installedRunner(file) ?? installedRunner(root);
  return folder === null ? null : { command: ["node", join(folder, "bin", "molt-runner.js")], folder };
}

/** The package in a `node_modules` of the path or above it. */
export function installedRunner(path: string): string | null {
  return above(path, (folder) => join(folder, "node_modules", "molt-runner"));
}

const packageAbove = (path: string) => above(path, (folder) => folder);

/** The first folder, going up, in which what `candidate` says is a package. */
function above(path: string, candidate: (folder: string) => string): string | null {
  for (let folder = path; ; folder = dirname(folder)) {
    const found = candidate(folder);
    if (existsSync(join(found, "package.json"))) return found;
    if (folder === dirname(folder)) return null;
  }
}

/** One path, from the workspace's folder, or the words of a command. A script is given to Node. */
function settingWords(setting: string, root: string): string[] {
  const text = setting.trim();
  const words = text !== "" && existsSync(resolve(root, text)) ? [resolve(root, text)] : splitWords(text);
  return /\.[cm]?js$/.test(words[0] ?? "") ? ["node", ...words] : words;
}

/** Words of a command line; those in quotes may hold spaces. */
export function splitWords(text: string): string[] {
  return [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map(([, double, single, bare]) => double ?? single ?? bare!);
}

/** What an installed runner says of itself, read without starting it. */
export interface RunnerVersions {
  version: string;
  /** Versions of what it reads and writes: `molt` in its package.json. */
  formats: Partial<Formats>;
  /** Of its schema, dotted; null where it holds none. */
  keys: Set<string> | null;
}

export type Formats = Record<"recipe" | "events" | "live", number>;

/** Null where the folder holds no runner. */
export function readVersions(folder: string): RunnerVersions | null {
  const { name, version, molt = {} } = readJson(join(folder, "package.json")) ?? {};
  if (name !== "molt-runner" || typeof version !== "string") return null;
  const schema = readJson(join(folder, "dist", "recipe-schema.json"));
  return {
    version,
    formats: molt as Partial<Formats>,
    keys: schema ? new Set(keysOf(schema).filter((key) => key !== "extends")) : null,
  };
}

function readJson(path: string): Record<string, unknown> | null {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch {
    return null;
  }
}

interface SchemaNode {
  properties?: Record<string, SchemaNode>;
}

function keysOf({ properties = {} }: SchemaNode, parent = ""): string[] {
  return Object.entries(properties).flatMap(([name, node]) =>
    node.properties ? keysOf(node, `${parent}${name}.`) : [`${parent}${name}`],
  );
}

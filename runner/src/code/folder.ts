import { readFileSync, statSync } from "node:fs";
import { relative } from "node:path";
import { filesBelow } from "../files.ts";
import { type CodeRecord, recordOf } from "./record.ts";

export interface CodeFile {
  /** Absolute. */
  path: string;
  /** Relative to the folder, with forward slashes. */
  name: string;
  record: CodeRecord;
}

const depth = 8;
/** Larger ones are data or bundles. */
const maxBytes = 500_000;
const isTest = /\.test\.\w+$|(^|\/)(test|tests|fixtures|bench)\//;

/** The TypeScript and JavaScript below a folder, tests left out. A file is parsed again only when it has changed. */
export class CodeFolder {
  private readonly cache = new Map<string, { stamp: string; file: CodeFile }>();

  constructor(readonly root: string) {}

  files(textOf?: (path: string) => string | undefined): CodeFile[] {
    return [...this.read(textOf)];
  }

  /** One after another, for whoever has other work between. `textOf` gives an open editor's text before the disk's. */
  *read(textOf: (path: string) => string | undefined = () => undefined): Generator<CodeFile> {
    for (const path of filesBelow(this.root, /\.[cm]?[jt]s$/, depth)) {
      const name = relative(this.root, path).replaceAll("\\", "/");
      const file = isTest.test(name) ? undefined : this.fileOf(path, name, textOf(path));
      if (file) yield file;
    }
  }

  private fileOf(path: string, name: string, open: string | undefined): CodeFile | undefined {
    const stat = statSync(path, { throwIfNoEntry: false });
    if (!stat || stat.size > maxBytes) return undefined;
    const stamp = open ?? `${stat.mtimeMs} ${stat.size}`;
    const cached = this.cache.get(path);
    if (cached?.stamp === stamp) return cached.file;
    const text = open ?? readText(path);
    // A video stream, say.
    if (text.includes("\0")) return undefined;
    const file = { path, name, record: recordOf(text, name) };
    this.cache.set(path, { stamp, file });
    return file;
  }
}

/** "" where it may not be read, or is gone. */
export function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

import { join } from "node:path";
import { CodeIndex } from "./code-index.ts";
import { type CodeFile, type CodeFolder, readText } from "./folder.ts";

/** A folder of code, as a reader is shown it. */
export interface CodeSource {
  folder: CodeFolder;
  /** Put before the names of its files; "" for the folder that one stands in. */
  title: string;
  /** One line by room, as `AGENTS.md` has them. */
  rooms: ReadonlyMap<string, string>;
}

export interface CodeMap {
  rooms: { room: string; summary: string; tokens: number; files: MappedFile[] }[];
}

export interface MappedFile {
  /** Shown to a reader: with the folder's title. */
  file: string;
  summary: string;
  tokens: number;
  exports: string[];
  /** Other files of the map, and who of them imports this one. */
  imports: string[];
  importedBy: string[];
}

/** Files by room, each with one line, its exported names, whom it imports and who imports it. */
export function codeMap(sources: readonly CodeSource[]): CodeMap {
  const rooms = new Map<string, CodeMap["rooms"][number]>();
  for (const source of sources) {
    for (const mapped of mappedFiles(source)) {
      const room = roomOf(mapped.file);
      const entry = rooms.get(room) ?? { room, summary: source.rooms.get(room) ?? "", tokens: 0, files: [] };
      entry.tokens += mapped.tokens;
      entry.files.push(mapped);
      rooms.set(room, entry);
    }
  }
  return { rooms: [...rooms.values()] };
}

function mappedFiles({ folder, title }: CodeSource): MappedFile[] {
  const index = new CodeIndex(folder.files());
  const shown = ({ name }: CodeFile) => title + name;
  const mapped = index.files.map((file): MappedFile => {
    const { symbols, imports, mentions: _, ...record } = file.record;
    const targets = imports.flatMap(({ from }) => index.imported(file, from) ?? []);
    const exports = symbols.filter(({ exported }) => exported).map(({ name }) => name);
    return { ...record, file: shown(file), exports, imports: [...new Set(targets.map(shown))], importedBy: [] };
  });
  const byName = new Map(mapped.map((one) => [one.file, one]));
  for (const { file, imports } of mapped) for (const target of imports) byName.get(target)!.importedBy.push(file);
  return mapped;
}

/** The folder right below `src`, else the first one; "." for files at the top. */
export function roomOf(file: string): string {
  const folders = file.split("/").slice(0, -1);
  const depth = folders.includes("src") ? folders.indexOf("src") + 2 : 1;
  return folders.slice(0, depth).join("/") || ".";
}

/** Whether a file lies in a room, which may be named by any part of its path: `algorithms`, `engines/embedded`. */
export function isInRoom(file: string, room: string): boolean {
  return room === roomOf(file) || `/${file}`.includes(`/${room.replace(/\/$/, "")}/`);
}

/** The table of a folder's AGENTS.md: what its rooms are for, in a line each. */
export function roomLines(folder: string): Map<string, string> {
  const lines = new Map<string, string>();
  for (const line of readText(join(folder, "AGENTS.md")).split("\n")) {
    const [, path, text] = line.split("|").map((cell) => cell.trim());
    if (path?.startsWith("`") && text) lines.set(path.replaceAll("`", "").replace(/\/$/, ""), text);
  }
  return lines;
}

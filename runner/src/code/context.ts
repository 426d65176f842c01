import { join } from "node:path";
import { usageError } from "../errors.ts";
import { type CodeMap, type CodeSource, codeMap, isInRoom, type MappedFile } from "./code-map.ts";
import { readText } from "./folder.ts";
import { tokensOf } from "./record.ts";

export interface ContextQuery {
  /** Names of rooms; none is all of them. */
  rooms: readonly string[];
  /** At most this many tokens, headings included. */
  budget: number;
}

export interface CodeContext {
  budget: number;
  tokens: number;
  /** What all of the chosen rooms would take. */
  wholeTokens: number;
  files: { file: string; form: Form }[];
  text: string;
}

/** A line is what the map says; whole is the source. */
export const forms = ["left out", "line", "whole"] as const;
export type Form = (typeof forms)[number];

/** The source of rooms within a budget: a line for each file, then whole files, those first that most others import. */
export function codeContext(sources: readonly CodeSource[], { rooms, budget }: ContextQuery): CodeContext {
  const chosen = roomsOf(codeMap(sources), rooms).rooms.flatMap(({ files }) => files);
  const formOf = new Map<MappedFile, Form>(chosen.map((file) => [file, "left out"]));
  const byValue = [...chosen].sort((a, b) => b.importedBy.length - a.importedBy.length);
  let spent = 0;
  for (const form of ["line", "whole"] as const) {
    for (const file of byValue) {
      const more = cost(file, form) - cost(file, formOf.get(file)!);
      if (spent + more > budget) continue;
      spent += more;
      formOf.set(file, form);
    }
  }
  const text = chosen.map((file) => textOf(file, formOf.get(file)!, sources)).join("");
  const wholeTokens = chosen.reduce((sum, file) => sum + cost(file, "whole"), 0);
  const files = chosen.map((mapped) => ({ file: mapped.file, form: formOf.get(mapped)! }));
  return { budget, tokens: tokensOf(text), wholeTokens, files, text };
}

/** The part of a map that is asked for, or one error with the rooms there are. */
export function roomsOf({ rooms }: CodeMap, names: readonly string[]): CodeMap {
  for (const name of names) {
    if (rooms.some(({ files }) => files.some(({ file }) => isInRoom(file, name)))) continue;
    throw usageError(`there is no room '${name}'`, { fix: `take one of ${rooms.map(({ room }) => room).join(", ")}` });
  }
  const isChosen = ({ file }: MappedFile) => names.length === 0 || names.some((name) => isInRoom(file, name));
  const chosen = rooms.map((room) => {
    const files = room.files.filter(isChosen);
    return { ...room, tokens: files.reduce((sum, { tokens }) => sum + tokens, 0), files };
  });
  return { rooms: chosen.filter(({ files }) => files.length > 0) };
}

/** In tokens, each part rounded up, so that together they are never more than was counted. */
function cost(mapped: MappedFile, form: Form): number {
  return tokensOf(heading(mapped, form)) + (form === "whole" ? mapped.tokens : 0);
}

function textOf(mapped: MappedFile, form: Form, sources: readonly CodeSource[]): string {
  if (form !== "whole") return heading(mapped, form);
  const { folder, title } = sources.findLast((source) => mapped.file.startsWith(source.title))!;
  return heading(mapped, form) + readText(join(folder.root, mapped.file.slice(title.length))).trimEnd();
}

function heading({ file, summary }: MappedFile, form: Form): string {
  return { "left out": "", line: `\n// ${file}: ${summary}`, whole: `\n\n// ${file}\n` }[form];
}

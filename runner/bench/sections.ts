/** Parts of docs/speed.md that have a command of their own: each is written by itself and outlives the others. */
import { existsSync, readFileSync } from "node:fs";
import { replaceFile } from "../src/files.ts";

const mark = (name: string) => [`<!-- begin ${name} -->`, `<!-- end ${name} -->`] as const;
const pageText = (file: string) => (existsSync(file) ? readFileSync(file, "utf8") : "# Speed\n");

/** All of them, as they stand in the page. */
export function keptSections(file: string): string {
  const found = [...pageText(file).matchAll(/<!-- begin (\S+) -->[\s\S]*?<!-- end \1 -->/g)];
  return found.map(([text]) => `\n${text}\n`).join("");
}

/** Replaces the section of this name, or adds it at the end. `text` is Markdown without the marks. */
export function writeSection(file: string, name: string, text: string): void {
  const [begin, end] = mark(name);
  const page = pageText(file);
  const [from, to] = [page.indexOf(begin), page.indexOf(end)];
  const [before, after] = from < 0 ? [`${page}\n`, "\n"] : [page.slice(0, from), page.slice(to + end.length)];
  replaceFile(file, `${before}${begin}\n${text.trim()}\n${end}${after}`);
}

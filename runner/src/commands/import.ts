import { existsSync, readFileSync } from "node:fs";
import { basename, extname } from "node:path";
import { ExitCode, fileError, formatPosition, messageOf } from "../errors.ts";
import { replaceFile } from "../files.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { importScript } from "../recipe/import/import.ts";

/** Writes the recipe of a shell script that calls the Python original, and lists what it has no key for. */
export function importCommand(script: string, options: { output?: string; json: boolean }): number {
  const output = options.output ?? `${basename(script, extname(script))}.yaml`;
  const position = { file: displayPath(script) };
  if (existsSync(output)) throw fileError(output, "there is such a file already", "name another with --output");
  let text: string;
  try {
    text = readFileSync(script, "utf8");
  } catch (error) {
    throw fileError(position.file, messageOf(error));
  }
  const { verb, yaml, left } = importScript(text, basename(script));
  replaceFile(output, yaml);
  if (options.json) console.log(JSON.stringify({ recipe: output, verb, left }));
  else {
    for (const { line, flag, value, why } of left) {
      const where = line === null ? `${position.file} (a default)` : formatPosition({ ...position, line });
      console.log(`${where} ${flag}${value && ` ${value}`}: ${why}`);
    }
    console.log(`${output} is written; next: molt-runner check ${output}`);
  }
  return ExitCode.done;
}

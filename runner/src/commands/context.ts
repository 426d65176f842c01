import { type CodeMap, codeMap } from "../code/code-map.ts";
import { type CodeContext, codeContext, forms, roomsOf } from "../code/context.ts";
import { codeSources } from "../code/shipped.ts";
import { ExitCode } from "../errors.ts";

/** `budget` is in tokens. */
type ContextOptions = { map: boolean; room: string[]; budget: number; json: boolean };

/** Prints the code map, or source within a budget: this folder's and the installed runner's. Executes none of it. */
export function contextCommand({ map, room: rooms, budget, json }: ContextOptions): number {
  const sources = codeSources(process.cwd());
  if (map) {
    const chosen = roomsOf(codeMap(sources), rooms);
    console.log(json ? JSON.stringify(chosen) : mapText(chosen));
  } else {
    const context = codeContext(sources, { rooms, budget });
    console.log(json ? JSON.stringify(context) : context.text.trimStart());
    if (!json) console.error(countsOf(context));
  }
  return ExitCode.done;
}

export function countsOf({ budget, files, tokens, wholeTokens }: CodeContext): string {
  const counts = forms.map((form) => `${files.filter((one) => one.form === form).length} ${form}`).reverse();
  return `${tokens} of ${budget} tokens, files: ${counts.join(", ")}; all of them whole take ${wholeTokens}`;
}

export function mapText({ rooms }: CodeMap): string {
  const lines = rooms.flatMap(({ room, summary, tokens, files }) => [
    `${room} (${tokens} tokens)${summary && `: ${summary}`}`,
    ...files.flatMap(({ file, summary, tokens, exports, imports, importedBy }) => [
      `  ${file} (${tokens})${summary && `: ${summary}`}`,
      ...Object.entries({ exports, imports, "imported by": importedBy })
        .filter(([, names]) => names.length > 0)
        .map(([what, names]) => `    ${what} ${names.join(", ")}`),
    ]),
  ]);
  return lines.join("\n");
}

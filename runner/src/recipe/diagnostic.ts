import { isAbsolute, relative } from "node:path";
import { ExitCode, formatPosition, RunnerError, type SourcePosition } from "../errors.ts";

/** Both from 0, `character` in UTF-16 units, as editors count. */
export interface Position {
  line: number;
  character: number;
}

export interface Range {
  start: Position;
  end: Position;
}

export interface Fix {
  title: string;
  range: Range;
  newText: string;
}

export interface Diagnostic {
  severity: "error" | "warning" | "info";
  code: DiagnosticCode;
  /** Name of the guardrail. */
  rule?: string;
  message: string;
  /** The file, or for a value from the command line its flag. */
  file: string;
  range: Range;
  /** Where the cause lies when that is another file, which the value names. */
  where?: SourcePosition;
  fix?: Fix;
  /** Dotted: the key that is missing, or that an unknown one was meant to be where that lies in another section. */
  meant?: string;
}

export type DiagnosticCode =
  | "syntax"
  | "duplicate-key"
  | "unknown-key"
  | "wrong-value"
  | "not-a-section"
  | "missing-key"
  | "environment"
  | "extends"
  | "guardrail"
  | "file";

export const fileStart: Range = { start: { line: 0, character: 0 }, end: { line: 0, character: 0 } };

/** Lines and columns from 1; paths relative to the working directory where they lie below it. */
export function positionOf({ file, range, where }: Pick<Diagnostic, "file" | "range" | "where">): SourcePosition {
  if (where) return where;
  if (file.startsWith("--")) return { file };
  return { file: displayPath(file), line: range.start.line + 1, column: range.start.character + 1 };
}

export function displayPath(path: string): string {
  const fromHere = relative(process.cwd(), path);
  return !isAbsolute(path) || fromHere.startsWith("..") ? path : fromHere || ".";
}

export function formatDiagnostic({ severity, message, ...place }: Diagnostic): string {
  const label = severity === "error" ? "" : `${severity}: `;
  const { position, text } = locate(message, place);
  return `${position ? `${formatPosition(position)} ` : ""}${label}${text}`;
}

/** A flag is named by its message already. */
function locate(message: string, place: Pick<Diagnostic, "file" | "range" | "where">) {
  const isFlag = place.where === undefined && message.startsWith(`${place.file.slice(2)} `);
  return isFlag ? { text: `--${message}` } : { position: positionOf(place), text: message };
}

/** Everything wrong with a recipe at once. */
export class RecipeError extends RunnerError {
  constructor(readonly diagnostics: Diagnostic[]) {
    const [first, ...others] = diagnostics.filter(({ severity }) => severity === "error");
    const { position, text } = locate(first!.message, first!);
    const lines = others.map((diagnostic) => `\n${formatDiagnostic(diagnostic)}`).join("");
    super(`${text}${lines}`, { position, exitCode: ExitCode.usage });
    this.name = "RecipeError";
  }
}

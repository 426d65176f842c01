import { type Mention, mentionsOf } from "./mentions.ts";
import { docOf, firstSentence, type Node, nameOf, parseModule } from "./syntax.ts";

/** What is kept of a source file. */
export interface CodeRecord {
  /** One line: of the comment that opens the file, else of its first documented export. */
  summary: string;
  tokens: number;
  imports: CodeImport[];
  symbols: CodeSymbol[];
  mentions: Mention[];
}

export interface CodeImport {
  /** As written: a relative path, or a package. */
  from: string;
  names: string[];
}

/** A name at the top of a file. */
export interface CodeSymbol {
  name: string;
  exported: boolean;
  /** First sentence of its docstring, or "". */
  summary: string;
  /** Both from 0. */
  line: number;
  character: number;
}

/** 3.97 characters of this code made one token of o200k when that was measured: a little is added for safety. */
export function tokensOf(text: string): number {
  return Math.ceil(text.length / 3.8);
}

/** `path` has forward slashes. A file that does not parse, or is nested too deeply to be walked, has no names. */
export function recordOf(code: string, path: string): CodeRecord {
  const tokens = tokensOf(code);
  const program = parseModule(code);
  try {
    if (program) return { tokens, ...namesOf(program, path) };
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return { tokens, summary: "", imports: [], symbols: [], mentions: [] };
}

function namesOf(program: Node, path: string): Omit<CodeRecord, "tokens"> {
  const statements = program.body as Node[];
  const symbols = statements.flatMap(symbolsOf);
  const opening = statements[0]?.type === "ImportDeclaration" ? openingOf(statements[0]) : "";
  const exported = symbols.filter((symbol) => symbol.exported);
  const documented = exported.find(({ summary }) => summary !== "")?.summary;
  const summary = firstSentence(opening) || documented || exported[0]?.name || "";
  return { summary, imports: statements.flatMap(importOf), symbols, mentions: mentionsOf(program, path) };
}

/** The comment that a file begins with, in whichever form. */
function openingOf(statement: Node): string {
  const lines = (statement.leadingComments ?? []).filter(({ type }) => type === "CommentLine");
  return docOf(statement) || lines.map(({ value }) => value.trim()).join(" ");
}

function importOf(statement: Node): CodeImport[] {
  const from = nameOf(statement.source as Node | undefined);
  if (from === undefined) return [];
  const specifiers = (statement.specifiers ?? []) as Node[];
  return [{ from, names: specifiers.map((one) => nameOf((one.imported ?? one.local ?? one.exported) as Node) ?? "*") }];
}

function symbolsOf(statement: Node): CodeSymbol[] {
  const exported = /^Export(Named|Default)Declaration$/.test(statement.type);
  const declaration = ((exported && statement.declaration) || statement) as Node;
  // A list, `export { a, b as c }`, gives names too.
  const listed = exported ? (statement.specifiers as Node[] | undefined) : undefined;
  return ((declaration.declarations ?? [declaration, ...(listed ?? [])]) as Node[]).flatMap((one) => {
    const id = (one.id ?? one.exported) as Node | null | undefined;
    const name = nameOf(id) ?? (statement.type === "ExportDefaultDeclaration" ? "default" : undefined);
    if (name === undefined) return [];
    const { line, column } = (id ?? one).loc.start;
    return [{ name, exported, summary: firstSentence(docOf(statement)), line: line - 1, character: column }];
  });
}

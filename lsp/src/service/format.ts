import { isDeepStrictEqual } from "node:util";
import type { TextEdit } from "vscode-languageserver";
import { parseAllDocuments, type Scalar, type Tags, type Document as YamlDocument } from "yaml";
import { isRecipe } from "./documents.ts";
import { type Document, yamlOf } from "./workspace.ts";

/**
 * Two columns a level, one space after a colon, long lines as they are; comments, blank lines, quotes and the choice of
 * braces or lines stay. A text that does not parse, or would mean something else, is left alone.
 */
export function format(document: Document): TextEdit[] {
  const { path, text } = document;
  const formatted = isRecipe(path, text) && yamlOf(document) ? formatText(text) : undefined;
  if (formatted === undefined || formatted === text) return [];
  const lines = text.split(/\r?\n/);
  const end = { line: lines.length - 1, character: lines.at(-1)!.length };
  return [{ range: { start: { line: 0, character: 0 }, end }, newText: formatted }];
}

function formatText(text: string): string | undefined {
  const lineEnd = text.includes("\r\n") ? "\r\n" : "\n";
  try {
    const document = parse(text.replaceAll("\r\n", "\n"));
    const body = document?.toString({ indent: 2, lineWidth: 0, directives: null });
    const isSame = body !== undefined && isDeepStrictEqual(parse(body)?.toJS(), document!.toJS());
    return isSame ? body.replaceAll("\n", lineEnd) : undefined;
  } catch {
    // An alias without its anchor.
    return undefined;
  }
}

/** Numbers are written as they were, `1.0e-3` not as `1e-3`. */
const asWritten = (tags: Tags): Tags =>
  tags.map((tag) => {
    const isNumber = typeof tag === "object" && /:(int|float)$/.test(tag.tag);
    return isNumber ? { ...tag, stringify: ({ source }: Scalar) => source! } : tag;
  }) as Tags;

function parse(text: string): YamlDocument.Parsed | undefined {
  const options = { uniqueKeys: false, prettyErrors: false, customTags: asWritten };
  const [document, ...others] = parseAllDocuments(text, options);
  return document && others.length === 0 && document.errors.length === 0 ? document : undefined;
}

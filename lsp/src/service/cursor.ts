import { isCollection, isPair, isScalar, isSeq, type Node, type Pair, parseDocument, visit } from "yaml";
import { type Position, type Range, recipeKeys } from "../../../runner/src/recipe/index.ts";

/** Where a cursor stands in a recipe. */
export interface Cursor {
  /** Dotted, "" is the top: whose keys can stand here. Undefined where a value stands. */
  section?: string;
  /** Dotted: the key whose value is being written. */
  key?: string;
  /** What is typed of the word up to the cursor. */
  word: string;
  /** The whole word: a completion replaces it. */
  range: Range;
  /** Columns before the line's text. */
  indent: number;
  inFlow: boolean;
  /** The cursor touches the colon of its key, where YAML needs a space. */
  afterColon: boolean;
  /** A colon follows the word already. */
  beforeColon: boolean;
}

/** Stands for the word at the cursor. No recipe has this character, and YAML takes it for a letter. */
const mark = "\ue000";

/**
 * From its section's lines up to the cursor alone: what is wrong above does not matter, and the parser recovers from
 * what is left open. Undefined in a comment and in a longer text.
 */
export function cursorAt(text: string, position: Position): Cursor | undefined {
  const lines = text.split(/\r?\n/, position.line + 1);
  const whole = lines[position.line] ?? "";
  const before = whole.slice(0, position.character);
  const after = whole.slice(before.length);
  const afterColon = before.endsWith(":");
  const word = afterColon ? "" : /[^\s{}[\],"'#]*$/.exec(before)![0];
  const start = before.length - word.length;
  const inFront = before.slice(0, start).replace(/["']$/, "");
  const marked = `${inFront}${afterColon ? " " : ""}${mark}`;
  const above = [...lines.slice(0, position.line), before];
  const first = Math.max(
    above.findLastIndex((line) => /^[\w"'\ufeff]/.test(line)),
    0,
  );
  const path = pathOfMark([...above.slice(first, -1), marked].join("\n"));
  if (!path) return undefined;
  const names = path.filter(isPair).map(({ key }) => (isScalar(key) ? String(key.value) : ""));
  const pair = path.findLast(isPair) as Pair<Node, Node> | undefined;
  const isKey = isScalar(pair?.key) && pair.key.value === mark;
  const key = (isKey ? names.slice(0, -1) : names).join(".");
  // A section's first key is still a text below it.
  const isSection = !recipeKeys.has(key) && !path.some(isSeq) && (isKey || inFront.trim() === "");
  const tail = /^[^\s{}[\],"':#]*/.exec(after)![0];
  return {
    ...(isSection ? { section: key } : { key }),
    word,
    range: {
      start: { line: position.line, character: start },
      end: { line: position.line, character: before.length + tail.length },
    },
    indent: /^\ufeff?([ \t]*)/.exec(before)![1]!.length,
    inFlow: path.some((node) => isCollection(node) && node.flow === true),
    afterColon,
    beforeColon: /^["']?\s*:/.test(after.slice(tail.length)),
  };
}

/** What the mark lies in, from the outside. */
function pathOfMark(text: string): readonly unknown[] | undefined {
  let found: readonly unknown[] | undefined;
  visit(parseDocument(text, { prettyErrors: false, uniqueKeys: false }), {
    Scalar: (_, { value }, path) => {
      if (value === mark) found = path;
    },
  });
  return found;
}

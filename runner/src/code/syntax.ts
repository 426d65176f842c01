import { parse } from "@babel/parser";

/** What walks need of an ESTree node; names of its children are the standard's, TypeScript's own begin with `TS`. */
export interface Node {
  type: string;
  /** Offsets in UTF-16 units. */
  start: number;
  end: number;
  loc: { start: { line: number; column: number } };
  leadingComments?: { type: string; value: string; start: number; end: number }[];
  [child: string]: unknown;
}

/** The program of a TypeScript or JavaScript module; nothing of it is executed. Undefined where it does not parse. */
export function parseModule(code: string): Node | undefined {
  try {
    const { program } = parse(code, {
      sourceType: "unambiguous",
      plugins: ["typescript", "estree"],
      // An editor's text is half typed most of the time.
      errorRecovery: true,
      allowReturnOutsideFunction: true,
    });
    return program as unknown as Node;
  } catch {
    return undefined;
  }
}

/** Comments hang on nodes without being children. */
export function children(node: Node): Node[] {
  const found: Node[] = [];
  for (const name in node) {
    const child = node[name];
    if (name === "loc" || name.endsWith("Comments") || typeof child !== "object") continue;
    if (Array.isArray(child)) found.push(...child.filter(isNode));
    else if (isNode(child)) found.push(child);
  }
  return found;
}

function isNode(value: unknown): value is Node {
  return typeof value === "object" && value !== null && typeof (value as Node).type === "string";
}

/** Every node of a tree, parents first. */
export function walk(node: Node, found: Node[] = []): Node[] {
  found.push(node);
  for (const child of children(node)) walk(child, found);
  return found;
}

/** Of an identifier, a string, or what has one as its key or property; undefined where it is computed. */
export function nameOf(node: Node | null | undefined): string | undefined {
  if (!node || node.computed) return undefined;
  if (node.type === "Literal") return typeof node.value === "string" ? node.value : undefined;
  return (node.name as string | undefined) ?? nameOf((node.key ?? node.property) as Node | undefined);
}

/** What types around an expression hide: `x!`, `x as T`, `x satisfies T`, `x?.y`. */
export function bare(node: Node | null | undefined): Node | undefined {
  const wrapped = node && /^(TS(NonNull|As|Satisfies)Expression|ChainExpression)$/.test(node.type);
  return wrapped ? bare(node.expression as Node) : (node ?? undefined);
}

/** The properties of an object expression or pattern that have a name. */
export function properties(node: Node | undefined): Node[] {
  const isObject = node?.type === "ObjectExpression" || node?.type === "ObjectPattern";
  return isObject ? (node.properties as Node[]).filter((one) => one.type === "Property" && nameOf(one)) : [];
}

/** The docstring of a statement as one text, or "". */
export function docOf(node: Node): string {
  const comment = node.leadingComments?.at(-1);
  if (comment?.type !== "CommentBlock" || !comment.value.startsWith("*")) return "";
  const lines = comment.value.slice(1).split("\n");
  return lines
    .map((line) => line.replace(/^\s*\*?\s?/, "").trim())
    .join(" ")
    .trim();
}

/** A text's first sentence. */
export function firstSentence(text: string): string {
  return /^(.*?)\.(?=\s|$)/.exec(text)?.[1] ?? text;
}

/** Of the type `"a"`, or `"a" | "b"`; none of any other. */
export function wordsOf(type: Node | undefined): string[] {
  const types = type?.type === "TSUnionType" ? (type.types as Node[]) : type ? [type] : [];
  return types.flatMap(({ literal }) => nameOf(literal as Node | undefined) ?? []);
}

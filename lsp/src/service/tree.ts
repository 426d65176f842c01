import { isCollection, isMap, isScalar, type Node, type Pair, visit } from "yaml";
import { type ParsedYaml, type Position, positionAt, type Range } from "../../../runner/src/recipe/index.ts";
import { type Document, yamlOf } from "./workspace.ts";

/** A key of a recipe as the file has it, right or wrong, and what lies below it. */
export interface TreeNode {
  /** Dotted, from the top. */
  key: string;
  name: string;
  keyRange: Range;
  /** Without what follows the last of it; the key's own where it has no value. */
  valueRange: Range;
  /** The texts in the value where that is no map: one, or a list's. */
  texts: { text: string; range: Range }[];
  children: TreeNode[];
}

const trees = new WeakMap<ParsedYaml, TreeNode[]>();

/** The keys at the top. What does not parse is left out: the rest is as good as the parser's recovery. */
export function treeOf(document: Document): TreeNode[] {
  const parsed = yamlOf(document);
  if (!parsed) return [];
  const range = (node: Node) => {
    const end = endOf(node, document.text);
    return { start: positionAt(parsed.lines, node.range![0]), end: positionAt(parsed.lines, end) };
  };
  const tree = trees.get(parsed) ?? nodesOf("", parsed.document.contents, range);
  trees.set(parsed, tree);
  return tree;
}

type RangeOf = (node: Node) => Range;

function nodesOf(section: string, map: Node | null, range: RangeOf): TreeNode[] {
  if (!isMap(map)) return [];
  return (map.items as Pair<Node, Node | null>[]).flatMap(({ key, value }) => {
    if (!isScalar(key) || !key.range) return [];
    const name = String(key.value);
    const path = section ? `${section}.${name}` : name;
    const keyRange = range(key);
    const valueRange = value?.range ? range(value) : keyRange;
    const children = nodesOf(path, value, range);
    return [{ key: path, name, keyRange, valueRange, texts: textsOf(value, range), children }];
  });
}

function textsOf(value: Node | null, range: RangeOf): TreeNode["texts"] {
  const texts: TreeNode["texts"] = [];
  if (value === null || isMap(value)) return texts;
  visit(value, {
    Scalar: (_, node) => {
      if (typeof node.value === "string" && node.range) texts.push({ text: node.value, range: range(node) });
    },
  });
  return texts;
}

/** To the parser a block goes on to what follows it, over blank lines and comments. */
function endOf(node: Node, text: string): number {
  const [start, end] = node.range!;
  const last = isCollection(node) && !node.flow ? node.items.at(-1) : undefined;
  if (last === undefined) return start + text.slice(start, end).trimEnd().length;
  const { key, value } = (isMap(node) ? last : { key: last }) as Pair<Node, Node | null>;
  const below = value?.range ? value : key;
  return below.range ? endOf(below, text) : end;
}

export function flatten(nodes: TreeNode[]): TreeNode[] {
  return nodes.flatMap((node) => [node, ...flatten(node.children)]);
}

/** The node whose key or value is at the position. */
export function nodeAt(nodes: TreeNode[], position: Position): TreeNode | undefined {
  return flatten(nodes).find(({ keyRange, valueRange, children }) => {
    return contains(keyRange, position) || (children.length === 0 && contains(valueRange, position));
  });
}

/** The ends count as inside. */
export function contains({ start, end }: Range, position: Position): boolean {
  return !isBefore(position, start) && !isBefore(end, position);
}

export function overlaps(a: Range, b: Range): boolean {
  return !isBefore(a.end, b.start) && !isBefore(b.end, a.start);
}

function isBefore(a: Position, b: Position): boolean {
  return a.line < b.line || (a.line === b.line && a.character < b.character);
}

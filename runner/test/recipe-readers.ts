import { parseSync } from "vite";

/** What the walk needs of an ESTree node; names of its children are the standard's. */
interface Node {
  type: string;
  [child: string]: unknown;
}

/** Names in scope that stand for a part of a recipe, each with that part's dotted path; "" is the whole recipe. */
type Scope = Map<string, string | null>;

/**
 * Dotted paths of a recipe that TypeScript code reads: `recipe.actor.adam.lr` gives `actor`, `actor.adam` and
 * `actor.adam.lr`. A recipe is what has the type `Recipe`, and any property called `recipe`; names are followed through
 * destructuring and constants, within their blocks.
 */
export function recipePaths(file: string, code: string): Set<string> {
  const found = new Set<string>();

  /** The path that an expression stands for, null where it is no part of a recipe. */
  function pathOf(node: Node, scope: Scope): string | null {
    if (node.type === "TSNonNullExpression" || node.type === "ChainExpression") {
      return pathOf(node.expression as Node, scope);
    }
    if (node.type === "Identifier") return scope.get(node.name as string) ?? null;
    if (node.type !== "MemberExpression" || node.computed) return null;
    return member(pathOf(node.object as Node, scope), (node.property as Node).name as string);
  }

  function member(parent: string | null, name: string): string | null {
    if (parent === null) return name === "recipe" ? "" : null;
    const path = parent === "" ? name : `${parent}.${name}`;
    found.add(path);
    return path;
  }

  /** Binds the names of a parameter or a declaration to what `path` has in their places. */
  function bind(pattern: Node, path: string | null, scope: Scope): void {
    if (pattern.type === "AssignmentPattern") bind(pattern.left as Node, path, scope);
    const typed = isRecipeType(pattern.typeAnnotation as Node | null) ? "" : path;
    if (pattern.type === "Identifier") scope.set(pattern.name as string, typed);
    if (pattern.type !== "ObjectPattern") return;
    for (const property of pattern.properties as Node[]) {
      if (property.type !== "Property" || property.computed) continue;
      bind(property.value as Node, member(typed, (property.key as Node).name as string), scope);
    }
  }

  function walk(node: Node, scope: Scope): void {
    const inner = node.type === "BlockStatement" || "params" in node ? new Map(scope) : scope;
    if (Array.isArray(node.params)) for (const parameter of node.params as Node[]) bind(parameter, null, inner);
    if (node.type === "VariableDeclarator") {
      bind(node.id as Node, node.init ? pathOf(node.init as Node, inner) : null, inner);
    }
    if (node.type === "MemberExpression") pathOf(node, inner);
    for (const child of Object.values(node).flat()) if (isNode(child)) walk(child, inner);
  }

  const { program, errors } = parseSync(file, code);
  if (errors.length > 0) throw new Error(`${file} does not parse: ${errors[0]!.message}`);
  walk(program as unknown as Node, new Map());
  return found;
}

function isRecipeType(annotation: Node | null | undefined): boolean {
  const type = annotation?.typeAnnotation as Node | undefined;
  return type?.type === "TSTypeReference" && (type.typeName as Node).name === "Recipe";
}

function isNode(value: unknown): value is Node {
  return typeof value === "object" && value !== null && "type" in value;
}

import { bare, children, type Node, nameOf, properties } from "./syntax.ts";

/** Names in scope that stand for a part of a recipe, each with that part's dotted path; "" is the whole recipe. */
type Scope = Map<string, string | null>;

export interface RecipeRead {
  /** Dotted. */
  key: string;
  /** Of its last name. */
  node: Node;
  /** The name is a pattern's property and its variable at once. */
  shorthand: boolean;
}

/**
 * Where a module reads a recipe: `recipe.actor.adam.lr` gives `actor`, `actor.adam` and `actor.adam.lr`. A recipe is
 * what has the type `Recipe`, and any property called `recipe`; names are followed through destructuring and constants,
 * within their blocks.
 */
export function recipeReads(program: Node): RecipeRead[] {
  /** By the name's node: a chain is met once for each of its links. */
  const found = new Map<Node, RecipeRead>();

  /** The path that an expression stands for, null where it is no part of a recipe. */
  function pathOf(given: Node | null | undefined, scope: Scope): string | null {
    const node = bare(given);
    if (node?.type === "Identifier") return scope.get(node.name as string) ?? null;
    if (node?.type !== "MemberExpression" || node.computed) return null;
    return member(pathOf(node.object as Node, scope), node.property as Node);
  }

  function member(parent: string | null, node: Node, shorthand = false): string | null {
    const name = nameOf(node)!;
    if (parent === null) return name === "recipe" ? "" : null;
    const path = parent === "" ? name : `${parent}.${name}`;
    found.set(node, { key: path, node, shorthand });
    return path;
  }

  /** Binds the names of a parameter or a declaration to what `path` has in their places. */
  function bind(pattern: Node, path: string | null, scope: Scope): void {
    if (pattern.type === "AssignmentPattern") bind(pattern.left as Node, path, scope);
    const typed = isRecipeType(pattern.typeAnnotation as Node | null) ? "" : path;
    if (pattern.type === "Identifier") scope.set(pattern.name as string, typed);
    for (const property of properties(pattern)) {
      bind(property.value as Node, member(typed, property.key as Node, property.shorthand === true), scope);
    }
  }

  function visit(node: Node, scope: Scope): void {
    const inner = node.type === "BlockStatement" || "params" in node ? new Map(scope) : scope;
    if (Array.isArray(node.params)) for (const parameter of node.params as Node[]) bind(parameter, null, inner);
    if (node.type === "VariableDeclarator") bind(node.id as Node, pathOf(node.init as Node | null, inner), inner);
    if (node.type === "MemberExpression") pathOf(node, inner);
    for (const child of children(node)) visit(child, inner);
  }

  visit(program, new Map());
  return [...found.values()];
}

function isRecipeType(annotation: Node | null | undefined): boolean {
  const type = annotation?.typeAnnotation as Node | undefined;
  return type?.type === "TSTypeReference" && nameOf(type.typeName as Node) === "Recipe";
}

import { bare, children, type Node, nameOf, properties, wordsOf } from "./syntax.ts";

/** Names in scope, each with the dotted paths of the recipe's parts that it may stand for; "" is the whole recipe. */
type Scope = Map<string, string[]>;

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
 * what has the type `Recipe`, and any property called `recipe`; `Recipe["actor" | "critic"]` is either section; names
 * are followed through destructuring and constants, within their blocks.
 */
export function recipeReads(program: Node): RecipeRead[] {
  /** By the key and the name's place: a chain is met once for each of its links. */
  const found = new Map<string, RecipeRead>();

  /** The paths that an expression may stand for. */
  function pathsOf(given: Node | null | undefined, scope: Scope): string[] {
    const node = bare(given);
    if (node?.type === "Identifier") return scope.get(node.name as string) ?? [];
    if (node?.type !== "MemberExpression" || node.computed) return [];
    return members(pathsOf(node.object as Node, scope), node.property as Node);
  }

  function members(parents: string[], node: Node, shorthand = false): string[] {
    const name = nameOf(node)!;
    if (parents.length === 0) return name === "recipe" ? [""] : [];
    const paths = parents.map((parent) => (parent === "" ? name : `${parent}.${name}`));
    for (const key of paths) found.set(`${key} ${node.start}`, { key, node, shorthand });
    return paths;
  }

  /** Binds the names of a parameter or a declaration to what `paths` have in their places. */
  function bind(pattern: Node, paths: string[], scope: Scope): void {
    if (pattern.type === "AssignmentPattern") bind(pattern.left as Node, paths, scope);
    const annotation = pattern.typeAnnotation as Node | null | undefined;
    const typed = annotation ? typePaths(annotation.typeAnnotation as Node, paths) : paths;
    if (pattern.type === "Identifier") scope.set(pattern.name as string, typed);
    for (const property of properties(pattern)) {
      bind(property.value as Node, members(typed, property.key as Node, property.shorthand === true), scope);
    }
  }

  function visit(node: Node, scope: Scope): void {
    const inner = node.type === "BlockStatement" || "params" in node ? new Map(scope) : scope;
    if (Array.isArray(node.params)) for (const parameter of node.params as Node[]) bind(parameter, [], inner);
    if (node.type === "VariableDeclarator") bind(node.id as Node, pathsOf(node.init as Node | null, inner), inner);
    if (node.type === "MemberExpression") pathsOf(node, inner);
    for (const child of children(node)) visit(child, inner);
  }

  visit(program, new Map());
  return [...found.values()];
}

/** Of `Recipe`, `Recipe["actor"]["adam"]`, `Recipe["actor" | "critic"]`; `otherwise` for another type. */
function typePaths(type: Node | undefined, otherwise: string[]): string[] {
  if (type?.type === "TSTypeReference") return nameOf(type.typeName as Node) === "Recipe" ? [""] : otherwise;
  if (type?.type !== "TSIndexedAccessType") return otherwise;
  const names = wordsOf(type.indexType as Node);
  return typePaths(type.objectType as Node, []).flatMap((parent) =>
    names.map((name) => (parent === "" ? name : `${parent}.${name}`)),
  );
}

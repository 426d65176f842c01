/**
 * What an editor or an assistant asks the server beyond the protocol. Both sides import this. The first three take a
 * recipe, unsaved or on disk alone, and answer null for a file that is none.
 */
import type { CodeContext, CodeMap, ContextQuery } from "../../runner/src/code/index.ts";
import type { Explanation } from "./service/explain.ts";
import type { PlanResult } from "./service/plan.ts";
import type { ResolvedRecipe } from "./service/resolved.ts";

export interface RecipeParams {
  uri: string;
}

/** Every value, where it comes from, and the verb that the recipe is made for. */
export const resolveRequest = "molt/resolve";
export type ResolveResult = ResolvedRecipe | null;

/** What a recipe comes to, as a value and as a table. */
export const planRequest = "molt/plan";
export type { PlanResult };

/** All that is known of one key. Null where the schema does not have it, too. */
export const explainRequest = "molt/explain";
export type ExplainParams = RecipeParams & { /** Dotted. */ key: string };
export type ExplainResult = (Explanation & { /** Markdown. */ text: string }) | null;

/** Rooms and files of the workspace's code and the runner's, a line each, and who imports whom. */
export const codeMapRequest = "molt/codeMap";
export type CodeMapResult = CodeMap;

/** The source of rooms, all where none is named, within a budget of tokens. */
export const contextRequest = "molt/context";
export type ContextParams = ContextQuery;
export type ContextResult = CodeContext;

import { usageError } from "../errors.ts";
import type { ChatAgent, Env } from "./types.ts";

/** The class that a bundled agent exports, from a module or from CommonJS. `file` is what the user wrote. */
export function agentClass(module: { default?: unknown }, file: string): new () => Env | ChatAgent {
  const exported = module.default as { default?: unknown } | undefined;
  const Agent = (exported?.default ?? exported) as (new () => Env | ChatAgent) | undefined;
  const has = (method: string) => typeof Agent?.prototype?.[method] === "function";
  if (typeof Agent === "function" && (has("step") || has("run"))) return Agent;
  const fix = 'import { Env } from "molt-runner"; export default class extends Env { step(action, row) { … } }';
  const what = "the agent's default export must be a class with a method step, or run";
  throw usageError(what, { position: { file }, fix });
}

import { usageError } from "../errors.ts";
import type { Env } from "./types.ts";

/** The class that a bundled agent exports, from a module or from CommonJS. `file` is what the user wrote. */
export function agentClass(module: { default?: unknown }, file: string): new () => Env {
  const exported = module.default as { default?: unknown } | undefined;
  const Agent = (exported?.default ?? exported) as (new () => Env) | undefined;
  if (typeof Agent === "function" && typeof Agent.prototype?.step === "function") return Agent;
  const fix = 'import { Env } from "molt-runner"; export default class extends Env { step(action, row) { … } }';
  throw usageError("the agent's default export must be a class with a method step", { position: { file }, fix });
}

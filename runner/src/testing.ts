/** What tests of an agent need, `molt-runner/testing`. Apart from the library, since it brings the bundler. */
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { agentClass } from "./agents/agent-class.ts";
import { importUserFile } from "./agents/bundle.ts";
import type { ChatAgent, Env } from "./agents/types.ts";

/** An agent's class, bundled as a run bundles it. Rejects with what is wrong with the file. */
export async function loadAgent<Agent extends Env | ChatAgent = Env>(file: string | URL): Promise<new () => Agent> {
  const path = typeof file === "string" ? resolve(file) : fileURLToPath(file);
  return agentClass(await importUserFile(path), path) as new () => Agent;
}

/** What a file exports by default (an estimator, a loss), bundled as a run bundles it. */
export async function loadFunction<F>(file: string | URL): Promise<F> {
  const path = typeof file === "string" ? resolve(file) : fileURLToPath(file);
  return (await importUserFile(path)).default as F;
}

/** `[T]` values as a loss gets them. Needs the native part. */
export async function tensorOf(values: number[]) {
  const { Tensor } = await import("molt-native");
  return Tensor.from(Float32Array.from(values));
}

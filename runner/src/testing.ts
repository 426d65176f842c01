/** What tests of an agent need, `molt-runner/testing`. Apart from the library, since it brings the bundler. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { agentClass } from "./agents/agent-class.ts";
import { bundleAgent, bundleRoot } from "./agents/bundle.ts";
import type { ChatAgent, Env } from "./agents/types.ts";

/** An agent's class, bundled as a run bundles it. Rejects with what is wrong with the file. */
export async function loadAgent<Agent extends Env | ChatAgent = Env>(file: string | URL): Promise<new () => Agent> {
  const path = typeof file === "string" ? resolve(file) : fileURLToPath(file);
  const folder = await mkdtemp(join(bundleRoot(tmpdir()), ".molt-agent-"));
  try {
    const bundle = join(folder, "agent.mjs");
    await bundleAgent(path, bundle);
    return agentClass(await import(pathToFileURL(bundle).href), path) as new () => Agent;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

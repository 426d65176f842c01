// Bundles the command line, the agent worker and the library into dist/, split so that a verb loads only what it needs.
import { rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

export async function buildRunner(outdir = here("dist")) {
  rmSync(outdir, { recursive: true, force: true });
  const entries = ["cli", "index", "agents/worker"];
  await build({
    entryPoints: Object.fromEntries(entries.map((entry) => [entry, here(`src/${entry}.ts`)])),
    outdir,
    bundle: true,
    splitting: true,
    // Beside cli.js: code in a chunk finds it by its own address.
    chunkNames: "[name]-[hash]",
    packages: "external",
    platform: "node",
    format: "esm",
    target: "node20",
    sourcemap: "linked",
    logLevel: "warning",
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildRunner();

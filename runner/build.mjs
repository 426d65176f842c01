// Bundles the command line, the agent worker and the library into dist/, split so that a verb loads only what it needs,
// and writes the library's types beside them.
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

export async function buildRunner(outdir = here("dist")) {
  rmSync(outdir, { recursive: true, force: true });
  const entries = ["cli", "index", "testing", "agents/worker"];
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
  writeTypes(outdir);
}

function writeTypes(outdir) {
  const typescript = dirname(createRequire(import.meta.url).resolve("typescript/package.json"));
  const args = ["--project", here("tsconfig.types.json"), "--outDir", outdir];
  execFileSync(process.execPath, [join(typescript, "bin", "tsc"), ...args], { stdio: "inherit" });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildRunner();

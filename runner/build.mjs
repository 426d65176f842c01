// Bundles the command line, the agent worker and the library into dist/, split so that a verb loads only what it needs,
// and writes the library's types and the language server beside them.
import { execFileSync } from "node:child_process";
import { copyFileSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transformSync } from "esbuild";
import { buildServer } from "../lsp/build.mjs";
import { writeNotices } from "../lsp/notices.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

/**
 * Bundles the template engine with its classes' fields assigned in constructors: Node 20 spends five sixths of the time
 * that a long conversation takes to render on defining fields that a base class has too.
 */
export const fastTemplates = {
  name: "fast-templates",
  setup({ onResolve, onLoad }) {
    const path = fileURLToPath(import.meta.resolve("@huggingface/jinja"));
    const tsconfigRaw = { compilerOptions: { useDefineForClassFields: false } };
    onResolve({ filter: /^@huggingface\/jinja$/ }, () => ({ path, namespace: "fast-templates" }));
    onLoad({ filter: /.*/, namespace: "fast-templates" }, () => ({
      contents: transformSync(readFileSync(path, "utf8"), { loader: "ts", target: "node20", tsconfigRaw }).code,
    }));
  },
};

export async function buildRunner(outdir = here("dist")) {
  rmSync(outdir, { recursive: true, force: true });
  const entries = ["cli", "index", "testing", "agents/worker"];
  const { metafile } = await build({
    entryPoints: Object.fromEntries(entries.map((entry) => [entry, here(`src/${entry}.ts`)])),
    outdir,
    bundle: true,
    splitting: true,
    // Beside cli.js: code in a chunk finds it by its own address.
    chunkNames: "[name]-[hash]",
    packages: "external",
    plugins: [fastTemplates],
    platform: "node",
    format: "esm",
    target: "node20",
    sourcemap: "linked",
    // The package holds the sources themselves.
    sourcesContent: false,
    metafile: true,
    logLevel: "warning",
  });
  // What the recipes that `init` writes name.
  copyFileSync(here("../recipes/schema.json"), join(outdir, "recipe-schema.json"));
  // Whence `context` and the language server know what the rooms are for.
  copyFileSync(here("../AGENTS.md"), join(outdir, "AGENTS.md"));
  // A bundle of its own: `molt-runner lsp` is the only verb that needs its libraries, but those that all verbs share.
  const external = ["@babel/parser", "jsonc-parser", "yaml", "zod"];
  const server = await buildServer(join(outdir, "server.cjs"), { sourcemap: false, external });
  writeNotices([metafile, server.metafile], join(outdir, "THIRD-PARTY-NOTICES.txt"));
  writeTypes(outdir);
}

function writeTypes(outdir) {
  const typescript = dirname(createRequire(import.meta.url).resolve("typescript/package.json"));
  const args = ["--project", here("tsconfig.types.json"), "--outDir", outdir];
  execFileSync(process.execPath, [join(typescript, "bin", "tsc"), ...args], { stdio: "inherit" });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildRunner();

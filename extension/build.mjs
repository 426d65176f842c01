// Bundles the extension into dist/extension.cjs, with the language server that it starts beside it, and a script for
// each page of a webview.
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { buildServer, englishOnly } from "../lsp/build.mjs";
import { writeNotices } from "../lsp/notices.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const common = { bundle: true, minify: true, metafile: true, logLevel: "warning" };
const pages = readdirSync(here("src")).filter((file) => /-page\.ts$|^page\.css$/.test(file));

const bundles = await Promise.all([
  buildServer(here("dist/server.cjs")),
  build({
    ...common,
    entryPoints: [here("src/extension.ts")],
    outfile: here("dist/extension.cjs"),
    platform: "node",
    format: "cjs",
    target: "node20",
    external: ["vscode"],
    plugins: [englishOnly],
    keepNames: true,
    sourcemap: "linked",
  }),
  build({
    ...common,
    entryPoints: pages.map((file) => here(`src/${file}`)),
    outdir: here("dist"),
    platform: "browser",
    format: "iife",
    target: "chrome120",
  }),
]);
writeNotices(
  bundles.map(({ metafile }) => metafile),
  here("dist/THIRD-PARTY-NOTICES.txt"),
);

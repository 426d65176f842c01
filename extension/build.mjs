// Bundles the extension into dist/extension.cjs, beside it the language server that it starts, what it loads later, and
// a script for each page of a webview.
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { buildServer, englishOnly } from "../lsp/build.mjs";
import { writeNotices } from "../lsp/notices.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const common = { bundle: true, minify: true, metafile: true, logLevel: "warning" };
const pages = readdirSync(here("src")).filter((file) => /-page\.ts$|^page\.css$/.test(file));

/** Loaded when first used, from a file each: Node reads a whole bundle before its first line runs. By their imports. */
const later = {
  "vscode-languageclient/node": "language-client",
  "./mcp-client.ts": "mcp-client",
  "../../runner/src/code/record.ts": "code-record",
};
const loadLater = {
  name: "load-later",
  setup({ onResolve }) {
    onResolve({ filter: /./ }, ({ path, kind }) => {
      return kind === "dynamic-import" && later[path] ? { path: `./${later[path]}.cjs`, external: true } : undefined;
    });
  },
};
const laterEntries = Object.entries(later).map(([path, out]) => {
  return { in: path.startsWith(".") ? here(`src/${path}`) : path, out };
});

const bundles = await Promise.all([
  buildServer(here("dist/server.cjs")),
  build({
    ...common,
    entryPoints: [{ in: here("src/extension.ts"), out: "extension" }, ...laterEntries],
    outdir: here("dist"),
    outExtension: { ".js": ".cjs" },
    platform: "node",
    format: "cjs",
    target: "node20",
    external: ["vscode"],
    plugins: [englishOnly, loadLater],
    supported: { "dynamic-import": false }, // `require`, which sees the names of a CommonJS package
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

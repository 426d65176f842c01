// Bundles the extension into dist/extension.cjs, with the language server that it starts beside it.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { buildServer } from "../lsp/build.mjs";
import { writeNotices } from "../lsp/notices.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

const bundles = await Promise.all([
  buildServer(here("dist/server.cjs")),
  build({
    entryPoints: [here("src/extension.ts")],
    outfile: here("dist/extension.cjs"),
    bundle: true,
    platform: "node",
    format: "cjs",
    target: "node20",
    external: ["vscode"],
    minify: true,
    keepNames: true,
    sourcemap: "linked",
    metafile: true,
    logLevel: "warning",
  }),
]);
writeNotices(
  bundles.map(({ metafile }) => metafile),
  here("dist/THIRD-PARTY-NOTICES.txt"),
);

// Bundles the language server into one file that Node, or VS Code's own Node, starts: dist/server.cjs.
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

/** zod carries its messages in some fifty languages, a third of the bundle; only English is ever asked for. */
export const englishOnly = {
  name: "english-only",
  setup({ onLoad }) {
    const contents = 'export { default as en } from "./en.js";';
    onLoad({ filter: /zod[\\/]v4[\\/]locales[\\/]index\.js$/ }, ({ path }) => ({
      contents,
      resolveDir: dirname(path),
    }));
  },
};

/**
 * CommonJS, because the protocol library is: an ES module bundle of it would need a `require` of its own. `external`:
 * packages that are installed beside it.
 */
export function buildServer(outfile = here("dist/server.cjs"), { sourcemap = "linked", external = [] } = {}) {
  return build({
    entryPoints: [here("src/server.ts")],
    outfile,
    bundle: true,
    external,
    // jsonc-parser's other form finds its parts where no bundler looks.
    mainFields: ["module", "main"],
    platform: "node",
    format: "cjs",
    target: "node20",
    minify: true,
    keepNames: true,
    sourcemap,
    plugins: [englishOnly],
    metafile: true,
    logLevel: "warning",
  });
}

/** `node lsp/build.mjs [OUTFILE]` */
if (process.argv[1] === fileURLToPath(import.meta.url)) await buildServer(process.argv[2]);

// `node start.mjs NAME`: bundles a benchmark that is one process, since Node 20 reads no TypeScript, and starts it.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const [name, ...args] = process.argv.slice(2);

await build({
  entryPoints: [here(`${name}.ts`)],
  outdir: here("dist"),
  bundle: true,
  packages: "external",
  platform: "node",
  format: "esm",
  target: "node20",
  logLevel: "warning",
});
const { status } = spawnSync(process.execPath, ["--expose-gc", here(`dist/${name}.js`), ...args], { stdio: "inherit" });
process.exitCode = status ?? 1;

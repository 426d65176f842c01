// `npm run bench`: bundles the benchmark, since Node 20 reads no TypeScript, and starts it.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

await build({
  entryPoints: [here("bench.ts"), here("ours.ts")],
  outdir: here("dist"),
  bundle: true,
  packages: "external",
  platform: "node",
  format: "esm",
  target: "node20",
  logLevel: "warning",
});
const { bench } = await import("./dist/bench.js");
process.exitCode = await bench(process.argv.slice(2));

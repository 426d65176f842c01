// `npm run bench:gateway`: bundles the benchmark, since Node 20 reads no TypeScript, and starts it.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { fastTemplates } from "../build.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

await build({
  entryPoints: [here("gateway.ts"), here("gateway-side.ts")],
  outdir: here("dist"),
  bundle: true,
  packages: "external",
  plugins: [fastTemplates],
  sourcemap: true,
  platform: "node",
  format: "esm",
  target: "node20",
  logLevel: "warning",
});
const { benchGateway } = await import("./dist/gateway.js");
await benchGateway(process.argv.slice(2));

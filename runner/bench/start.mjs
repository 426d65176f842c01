// `node start.mjs NAME`: bundles a benchmark that is one process, since Node 20 reads no TypeScript, and starts it.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { bundleBeside } from "./bundle.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const [name, ...args] = process.argv.slice(2);

await bundleBeside(import.meta.url, name);
const { status } = spawnSync(process.execPath, ["--expose-gc", here(`dist/${name}.js`), ...args], { stdio: "inherit" });
process.exitCode = status ?? 1;

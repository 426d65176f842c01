// `npm run bench:train [-- --smoke]`: bundles the benchmark, since Node 20 reads no TypeScript, and starts it.
import { fileURLToPath } from "node:url";
import { bundleBeside } from "./bundle.mjs";

process.env.MOLT_CLI ??= fileURLToPath(new URL("../dist/cli.js", import.meta.url));
await bundleBeside(import.meta.url, "train", "ours");
await import("./dist/train.js");

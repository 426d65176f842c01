// `npm run bench`: bundles the benchmark, since Node 20 reads no TypeScript, and starts it.
import { bundleBeside } from "./bundle.mjs";

await bundleBeside(import.meta.url, "bench", "ours");
const { bench } = await import("./dist/bench.js");
process.exitCode = await bench(process.argv.slice(2));

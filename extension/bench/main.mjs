// `npm run bench:editor`: bundles the benchmark, since Node 20 reads no TypeScript, and runs it in this process.
import { bundleBeside } from "../../runner/bench/bundle.mjs";

await bundleBeside(import.meta.url, "dashboard");
const { benchDashboard } = await import(new URL("dist/dashboard.js", import.meta.url).href);
await benchDashboard();

// `npm run bench:editor`: bundles the benchmarks, since Node 20 reads no TypeScript, and runs them in this process.
import { bundleBeside } from "../../runner/bench/bundle.mjs";

await bundleBeside(import.meta.url, "activation", "dashboard");
const load = (name) => import(new URL(`dist/${name}.js`, import.meta.url).href);
const { benchActivation } = await load("activation");
await benchActivation();
const { benchDashboard } = await load("dashboard");
await benchDashboard();

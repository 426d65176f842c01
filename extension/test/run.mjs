// `npm run test:editor [-- --only TEXT] [-- --screenshots]`: bundles the tier, since Node 20 reads no TypeScript, and
// runs it in this process.
import { bundleBeside } from "../../runner/bench/bundle.mjs";

await bundleBeside(import.meta.url, "tier");
const { runTier } = await import(new URL("dist/tier.js", import.meta.url).href);
await runTier(process.argv.slice(2));

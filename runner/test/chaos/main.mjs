// `npm run test:chaos [-- SECONDS [SEED]]`: bundles the tier (Node 20 reads no TypeScript) and runs it; 180 s of kills
// unless told otherwise.
import { fileURLToPath } from "node:url";
import { endChildrenWithUs } from "../../../native/setup/run.mjs";
import { bundleBeside } from "../../bench/bundle.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

await bundleBeside(import.meta.url, "tier");
const { runTier } = await import("./dist/tier.js");
endChildrenWithUs();
const [seconds = "180", seed = String(Date.now() % 100_000)] = process.argv.slice(2);
const { code, line } = await runTier({
  cli: process.env.MOLT_CLI ?? here("../../dist/cli.js"),
  recipes: here("../../../recipes"),
  agent: here("agent.ts"),
  seconds: Number(seconds),
  seed: Number(seed),
});
console.log(line);
process.exit(code);

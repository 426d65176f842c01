// `npm run test:distributed [-- PATTERN]`: bundles the tier (Node 20 reads no TypeScript) and runs it, or the checks
// whose names match.
import { fileURLToPath } from "node:url";
import { endChildrenWithUs } from "../../../native/setup/run.mjs";
import { bundleBeside } from "../../bench/bundle.mjs";

process.env.MOLT_CLI ??= fileURLToPath(new URL("../../dist/cli.js", import.meta.url));
await bundleBeside(import.meta.url, "tier");
const { runTier } = await import("./dist/tier.js");
endChildrenWithUs();
const { code, line } = await runTier(new RegExp(process.argv[2] ?? ""));
console.log(line);
process.exit(code);

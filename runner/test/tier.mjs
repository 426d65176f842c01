// Bundles the tier beside its caller (Node 20 reads no TypeScript), runs it, and ends with it.
import { endChildrenWithUs } from "../../native/setup/run.mjs";
import { bundleBeside } from "../bench/bundle.mjs";

/** @param {string} caller its `import.meta.url` */
export async function endWithTier(caller, options) {
  await bundleBeside(caller, "tier");
  const { runTier } = await import(new URL("dist/tier.js", caller).href);
  endChildrenWithUs();
  const { code, line } = await runTier(options);
  console.log(line);
  process.exit(code);
}

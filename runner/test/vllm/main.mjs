// `npm run test:vllm`: installs vLLM for CPUs, bundles the tier (Node 20 reads no TypeScript) and runs it.
import { fileURLToPath } from "node:url";
import { endChildrenWithUs } from "../../../native/setup/run.mjs";
import { bundleBeside } from "../../bench/bundle.mjs";
import { install } from "./install.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

process.env.MOLT_CLI ??= here("../../dist/cli.js");
await bundleBeside(import.meta.url, "tier");
const { runTier } = await import("./dist/tier.js");
endChildrenWithUs();
const { code, line } = await runTier({
  install,
  recipes: here("../../../recipes"),
  agent: here("agent.ts"),
  handshake: here("nccl_handshake.py"),
  only: process.argv[2] ?? "",
});
console.log(line);
process.exit(code);

// `npm run test:ray`, `npm run test:slurm`: a real cluster of two nodes, which are network namespaces of this machine.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { endWithTier } from "../tier.mjs";
import { install } from "./install.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const kind = process.argv[2];

function notRun(reason) {
  console.log(`not run: ${reason}\n0 passed, 0 failed, 0 skipped`);
  process.exit(0);
}

if (process.platform !== "linux" || process.getuid() !== 0)
  notRun("it makes network namespaces, which needs root on Linux");
const probe = `ip netns add molt-probe && ip netns del molt-probe && unshare --mount --uts true && command -v nsenter`;
const answer = spawnSync("sh", ["-c", probe], { encoding: "utf8" });
if (answer.status !== 0) notRun(`this machine makes no network namespaces: ${answer.stderr.trim()}`);
let bin;
try {
  bin = await install(kind);
} catch (error) {
  if (!error.network) throw error;
  notRun(`it could not be installed, for the network: ${error.message.split("\n").at(-1).trim()}`);
}
const cli = process.env.MOLT_CLI ?? here("../../dist/cli.js");
await endWithTier(import.meta.url, { kind, bin, cli, recipes: here("../../../recipes") });

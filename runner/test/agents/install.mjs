// What the agents' tier runs, pinned, in a folder of the cache: SDKs, verifiers and coding agents.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { cacheDirectory } from "../../../native/setup/locate.mjs";
import { npmOnline } from "../../../native/setup/packages.mjs";
import { run, stampIn } from "../../../native/setup/run.mjs";
import { findPython } from "../../../native/setup/tools.mjs";

const npmPackages = [
  "openai@6.49.0",
  "@anthropic-ai/sdk@1.14.0",
  "@anthropic-ai/claude-code@2.1.197",
  "@openai/codex@0.171.0",
];
const requirements = fileURLToPath(new URL("requirements.txt", import.meta.url));

/** Rejects with a SetupError, whose `network` says whether the network is to blame. */
export async function install() {
  const folder = join(cacheDirectory(), "test-agents");
  const node = join(folder, "node");
  const python = join(folder, "python");
  await once(node, npmPackages.join("\n"), async () => {
    writeFileSync(join(node, "package.json"), '{ "private": true }\n');
    await npmOnline(["install", "--save-exact", ...npmPackages], node);
  });
  await once(python, readFileSync(requirements, "utf8"), async () => {
    await run(findPython().command ?? "python3", ["-m", "venv", python], { minutes: 3, what: "python -m venv" });
    const args = ["-m", "pip", "--disable-pip-version-check", "install", "--no-compile", "-r", requirements];
    await run(join(python, "bin", "python"), args, { minutes: 20, what: "pip install" }); // pip itself tries again
  });
  return { node, bin: join(node, "node_modules", ".bin"), python: join(python, "bin") };
}

/** Fills a folder afresh unless exactly this content was put there before. */
async function once(folder, content, fill) {
  const stamp = stampIn(folder, "installed", content);
  if (stamp.current()) return;
  if (existsSync(folder)) rmSync(folder, { recursive: true });
  mkdirSync(folder, { recursive: true });
  console.log(`installing into ${folder} …`);
  await fill();
  stamp.write();
}

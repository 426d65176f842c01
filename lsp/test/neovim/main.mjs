// The built language server in an editor that is not VS Code: Neovim, headless. `--install` takes it from Debian.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { buildServer } from "../../build.mjs";

const scale = Number(process.env.MOLT_DEADLINE_SCALE ?? 1);
const session = fileURLToPath(new URL("session.lua", import.meta.url));
const recipe = `# molt-runner
actor: { model_name_or_path: model, init: random }
data: { prompt_dataset: prompts.jsonl }
train: { agent_path: agent.ts }
rollout: { batch_sise: 4 }
`;

const hasNeovim = () => spawnSync("nvim", ["--version"]).status === 0;
if (!hasNeovim() && process.argv.includes("--install") && process.getuid?.() === 0) {
  const options = {
    stdio: "ignore",
    env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" },
    timeout: 300_000 * scale,
  };
  spawnSync("apt-get", ["update", "-qq"], options);
  spawnSync("apt-get", ["install", "-y", "-qq", "--no-install-recommends", "neovim"], options);
}
if (hasNeovim()) {
  await test();
} else {
  console.log("not run: nvim is missing (apt-get install neovim)");
  console.log("0 passed, 0 failed, 1 skipped");
}

async function test() {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), "molt-neovim-")));
  try {
    const server = join(folder, "server.cjs");
    await buildServer(server, { sourcemap: false });
    report(check(run(folder, server), folder));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function run(folder, server) {
  const file = join(folder, "sort.yaml");
  writeFileSync(file, recipe);
  writeFileSync(join(folder, "agent.ts"), "");
  const env = {
    ...process.env,
    MOLT_SERVER: server,
    MOLT_NODE: process.execPath,
    MOLT_RECIPE: file,
    MOLT_DEADLINE_MS: String(10_000 * scale),
  };
  const options = { env, encoding: "utf8", timeout: 60_000 * scale };
  const { stdout, stderr, status } = spawnSync("nvim", ["--headless", "--clean", "-n", "-S", session], options);
  assert.match(stdout, /^\{/, `nvim ended with ${status}: ${stdout}${stderr}`);
  const result = JSON.parse(stdout);
  assert.equal(result.error, undefined);
  return result;
}

/** What a user sees there. */
function check({ diagnostics, hover, completion, definition, text }, folder) {
  return {
    "a misspelt key is underlined with the right one": () => {
      assert.match(diagnostics[0].message, /unknown key 'batch_sise'.*did you mean 'batch_size'/);
      assert.deepEqual([diagnostics[0].line, diagnostics[0].column], [4, 11]);
    },
    "hover explains the key": () => assert.match(hover, /\*\*rollout\.batch_size\*\*: an integer of at least 1/),
    "completion lists the section's keys": () => {
      assert.ok(completion.includes("temperature"));
      assert.ok(!completion.includes("batch_size"), "a key that is set already is offered");
    },
    "definition opens the agent": () => assert.equal(definition, pathToFileURL(join(folder, "agent.ts")).href),
    "formatting is applied": () => assert.match(text, /\nrollout:\n {2}batch_size: 4\n {2}temperature: 1$/),
  };
}

function report(checks) {
  let failed = 0;
  for (const [name, holds] of Object.entries(checks)) {
    try {
      holds();
      console.log(`passed   ${name}`);
    } catch (error) {
      failed++;
      console.log(`failed   ${name}\n  ${error.message}`);
    }
  }
  console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed, 0 skipped`);
  process.exitCode = failed > 0 ? 1 : 0;
}

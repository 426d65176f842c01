// The checkout's npm packages and JavaScript builds.
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { nativeDirectory } from "./locate.mjs";
import { run, stampIn } from "./run.mjs";

const root = join(nativeDirectory, "..");
const modules = join(root, "node_modules");
const attempts = 3;

/** Whether we lie in a checkout of the workspace, and not in someone's node_modules. */
export function inCheckout() {
  return existsSync(join(root, "package-lock.json")) && existsSync(join(root, "runner", "build.mjs"));
}

/** @param {string[]} files */
function contentHash(files) {
  const hash = createHash("sha256");
  for (const file of files) hash.update(`\n${file}\n`).update(readFileSync(file));
  return hash.digest("hex");
}

// In node_modules: they go when it goes.
const installed = () => stampIn(modules, "packages", contentHash([join(root, "package-lock.json")]));

/** npm, tried again where the network failed. @param {string[]} args @param {string} cwd */
export async function npmOnline(args, cwd) {
  const flags = ["--no-audit", "--no-fund", "--loglevel=http", "--fetch-timeout=60000"];
  for (let attempt = 1; ; attempt++) {
    try {
      return await run("npm", [...args, ...flags], { cwd, minutes: 10, what: `npm ${args[0]}` });
    } catch (error) {
      if (attempt === attempts || !error.network) throw error;
      await sleep(2000 * attempt);
    }
  }
}

async function install() {
  await npmOnline(["ci"], root);
  installed().write();
}

const outputs = ["runner", "lsp", "extension"].map((name) => join(root, name, "dist"));

function buildInputs() {
  const sources = ["runner", "lsp", "extension"].flatMap((name) =>
    readdirSync(join(root, name), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
      .filter((file) => /\.(ts|mjs|json)$/.test(file) && !/[\\/](dist|node_modules|test)[\\/]/.test(file)),
  );
  return [join(root, "package-lock.json"), ...sources.filter((file) => !file.endsWith(".test.ts")).sort()];
}

const built = () => stampIn(modules, "build", contentHash(buildInputs()));

async function build() {
  await run("npm", ["run", "build"], { cwd: root, minutes: 5, what: "npm run build" });
  built().write();
}

/** @returns {import("./setup.mjs").Phase} */
export function packagesPhase() {
  return { name: "npm packages", done: () => installed().current(), run: install };
}

/** @returns {import("./setup.mjs").Phase} */
export function buildPhase() {
  const done = () => outputs.every((path) => existsSync(path)) && built().current();
  return { name: "JavaScript builds", done, run: build };
}

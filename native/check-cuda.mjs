// `npm run check:cuda`: compiles every native source, syntax only, for CUDA and NCCL against the headers of a CUDA
// libtorch. Needs no GPU. The headers are kept in the cache (75 MB); says "not run" where they are not there.
//   --install        fetches their wheels first (1.6 GB, one after the other; only headers stay)
//   --install-local  the same, but only where pip is configured with packages on this machine's disk
//   --quick          only sources that mention CUDA, the device or NCCL
import { spawn } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, statfsSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { configureBuild } from "./setup/addon.mjs";
import { cacheDirectory, cudaHeaders, missingCudaHeaders, SetupError } from "./setup/locate.mjs";
import { capture, endChildrenWithUs, run, stampIn } from "./setup/run.mjs";
import { findPython } from "./setup/tools.mjs";

/** Newer than the pinned libtorch: the sources fit both. */
const wheels = [
  "torch==2.14.1",
  "nvidia-nccl-cu13==2.30.7",
  "nvidia-cublas==13.1.1.3",
  "nvidia-cusparse==12.6.3.3",
  "nvidia-cusolver==12.0.4.66",
  "nvidia-cuda-runtime==13.0.96",
  "nvidia-cuda-crt==13.0.88",
  "nvidia-cuda-cccl==13.0.85",
];
const freeGigabytes = 4;
const folder = join(cacheDirectory(), "cuda-headers");
const stamp = stampIn(folder, "headers", wheels.join("\n"));
const unpack = `import sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
archive.extractall(sys.argv[2], [name for name in archive.namelist() if "/include/" in name])`;

async function install() {
  mkdirSync(cacheDirectory(), { recursive: true });
  const { bavail, bsize } = statfsSync(cacheDirectory());
  if (bavail * bsize < freeGigabytes * 2 ** 30)
    throw new SetupError(`less than ${freeGigabytes} GB are free for the wheels`);
  const python = findPython().command ?? "python3";
  const aside = `${folder}-wheels`;
  rmSync(folder, { recursive: true, force: true });
  for (const wheel of wheels) {
    console.log(`headers of ${wheel} …`);
    const args = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", aside, wheel];
    try {
      await run(python, ["-m", "pip", "--disable-pip-version-check", ...args], {
        minutes: 10,
        what: `pip download ${wheel}`,
      });
      const file = join(aside, readdirSync(aside)[0]);
      await run(python, ["-c", unpack, file, folder], { minutes: 3, what: `unpacking ${wheel}` });
    } finally {
      rmSync(aside, { recursive: true, force: true });
    }
  }
  stamp.write();
}

/** As the build would compile it, but for the object. @param {{ command: string, directory: string }} entry */
function compile({ command, directory }) {
  return new Promise((resolve, reject) => {
    const child = spawn(`${command} -fsyntax-only`, {
      cwd: directory,
      shell: true,
      stdio: ["ignore", "inherit", "inherit"],
    });
    child.once("error", reject);
    child.once("close", (code) => resolve(code === 0));
  });
}

async function check() {
  const torch = join(folder, "torch");
  const headers = cudaHeaders(torch);
  const missing = missingCudaHeaders(headers);
  if (missing.length > 0) throw new SetupError(`${missing.join(", ")} is in none of ${headers.join(", ")}`);
  const build = join(folder, "build");
  await configureBuild(torch, build, headers);
  const all = JSON.parse(readFileSync(join(build, "compile_commands.json"), "utf8"));
  const isOfDevice = ({ file }) => /cuda|nccl|device/i.test(readFileSync(file, "utf8"));
  const waiting = process.argv.includes("--quick") ? all.filter(isOfDevice) : all;
  const failed = [];
  const total = waiting.length;
  const worker = async () => {
    for (let entry = waiting.shift(); entry; entry = waiting.shift()) {
      if (!(await compile(entry))) failed.push(entry.file);
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, worker));
  for (const file of failed) console.log(`does not compile for CUDA: ${file}`);
  console.log(`${total - failed.length} passed, ${failed.length} failed, 0 skipped`);
  process.exitCode = failed.length > 0 ? 1 : 0;
}

async function installs() {
  if (process.argv.includes("--install")) return true;
  const configuration = await capture(findPython().command ?? "python3", ["-m", "pip", "config", "list"]);
  return process.argv.includes("--install-local") && /file:\/\//.test(configuration ?? "");
}

const release = endChildrenWithUs();
try {
  if (!stamp.current() && (await installs())) await install();
  if (stamp.current()) await check();
  else console.log("not run: CUDA headers are not in the cache (npm run check:cuda -- --install fetches 1.6 GB)");
} catch (error) {
  if (!(error instanceof SetupError)) throw error;
  console.error(`check:cuda: ${error.message}`);
  process.exitCode = 1;
} finally {
  release();
}

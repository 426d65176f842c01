// The private Python environment: libtorch from its wheel, CMake and Ninja where missing, the oracle of the tests.
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { environmentDirectory, pythonPath, SetupError, torchDirectory, torchVersion, wantsCuda } from "./locate.mjs";
import { capture, run, stampIn } from "./run.mjs";
import { atLeast, findPython } from "./tools.mjs";

const cpuIndex = "https://download.pytorch.org/whl/cpu";
/** What libtorch_cpu.so of the CUDA build of `torchVersion` is itself linked against: all of CUDA that is needed. */
const cudaLibraries = "cuda-toolkit[cudart,cupti]==13.0.3";
/** For a device: torch's own dependencies have the rest, NCCL included. */
const cudaCompiler = ["nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85"];
const cmakeWheel = "cmake==3.31.6";
const ninjaWheel = "ninja==1.13.0";
const oracle = [
  'numpy==2.4.6; python_version >= "3.11"',
  'numpy==2.2.6; python_version < "3.11"',
  "transformers==5.24.0",
  "tokenizers==0.23.3",
  "safetensors==0.8.0",
];

const environmentStamp = () => stampIn(environmentDirectory(), "environment", "1");
const torchStamp = () => stampIn(environmentDirectory(), "torch", torchVersion + (wantsCuda() ? "+cuda" : ""));
const oracleStamp = () => stampIn(environmentDirectory(), "oracle", [torchVersion, ...oracle].join("\n"));

async function createEnvironment() {
  rmSync(environmentDirectory(), { recursive: true, force: true });
  await run(findPython().command ?? "python3", ["-m", "venv", environmentDirectory()], {
    minutes: 3,
    what: "python -m venv",
  });
  environmentStamp().write();
}

/** @param {string[]} args */
function pip(args, minutes = 20) {
  return run(pythonPath(), ["-m", "pip", "--disable-pip-version-check", ...args], { minutes, what: `pip ${args[0]}` });
}

/** Whether an index lists the CPU wheel; an unreachable one costs seconds. @param {string[]} index */
async function listsCpuWheel(index) {
  const probe = ["index", "versions", "torch", "--timeout", "5", "--retries", "0", ...index];
  return (await capture(pythonPath(), ["-m", "pip", ...probe]))?.includes(`${torchVersion}+cpu`) ?? false;
}

/**
 * Where the wheel comes from, the first that has it: the index that `MOLT_TORCH_INDEX` names; a folder in pip's own
 * configuration; an index there; PyTorch's CPU index; the ordinary one, whose wheel for Linux is a CUDA build.
 */
export async function torchSource() {
  const index = process.env.MOLT_TORCH_INDEX;
  if (!index && wantsCuda()) return { where: "the ordinary index (a CUDA build)", args: [`torch==${torchVersion}`] };
  if (index) return { where: index, args: ["--index-url", index, `torch==${torchVersion}`] };
  const cpu = `torch==${torchVersion}+cpu`;
  if (process.platform === "linux") {
    const configuration = (await capture(pythonPath(), ["-m", "pip", "config", "list"])) ?? "";
    if (configuration.includes("find-links") && (await listsCpuWheel(["--no-index"])))
      return { where: "pip's find-links", args: ["--no-index", cpu] };
    if (await listsCpuWheel([])) return { where: "pip's configured index", args: [cpu] };
    if (await listsCpuWheel(["--index-url", cpuIndex]))
      return { where: cpuIndex, args: ["--index-url", cpuIndex, cpu] };
  }
  return {
    where: "the ordinary index (on Linux a CUDA build, several times larger)",
    args: [`torch==${torchVersion}`],
  };
}

/** @param {(line: string) => void} log */
async function installTorch(log) {
  const { where, args } = await torchSource();
  log(`torch ${torchVersion} from ${where}`);
  const needs = wantsCuda() ? cudaCompiler : ["--no-deps"];
  await pip(["install", "--no-compile", "--only-binary", ":all:", ...needs, ...args], 30);
  const torch = torchDirectory();
  if (torch === null)
    throw new SetupError(`the torch wheel left no libtorch in ${environmentDirectory()}`, "remove it and try again");
  if (existsSync(join(torch, "lib", "libtorch_cuda.so"))) await pip(["install", "--no-compile", cudaLibraries]);
  torchStamp().write();
}

/** The command to call: the one on PATH where it is new enough, else the wheel's, else null. */
async function findBuildTool(name, least) {
  for (const command of [name, join(environmentDirectory(), "bin", name)]) {
    const version = (await capture(command, ["--version"]))?.match(/\d+\.\d+(\.\d+)*/)?.[0];
    if (version && atLeast(version, least)) return command;
  }
  return null;
}

/** CMake and Ninja, from their wheels where missing or too old. */
export async function buildTools() {
  const find = async () => ({
    cmake: await findBuildTool("cmake", "3.18"),
    ninja: await findBuildTool("ninja", "1.10"),
  });
  const found = await find();
  const wheels = [found.cmake ? null : cmakeWheel, found.ninja ? null : ninjaWheel].filter((wheel) => wheel !== null);
  if (wheels.length === 0) return found;
  if (!environmentStamp().current()) await createEnvironment();
  await pip(["install", "--only-binary", ":all:", ...wheels]);
  return find();
}

/** torch's own dependencies come with its exact version, which is installed already. */
async function installOracle() {
  await pip(["install", "--no-compile", "--only-binary", ":all:", `torch==${await installedTorch()}`, ...oracle]);
  await run(pythonPath(), ["-c", "import torch, transformers, tokenizers, numpy"], {
    minutes: 3,
    what: "the tests' Python",
  });
  oracleStamp().write();
}

async function installedTorch() {
  const code = "from importlib.metadata import version; print(version('torch'))";
  return (await run(pythonPath(), ["-c", code])).trim();
}

/** @param {{ tests: boolean }} options @returns {import("./setup.mjs").Phase[]} */
export function pythonPhases({ tests }) {
  const ownTorch = tests || !process.env.MOLT_LIBTORCH;
  const environment = { name: "Python environment", done: () => environmentStamp().current(), run: createEnvironment };
  const torch = { name: `libtorch ${torchVersion}`, done: () => torchStamp().current(), run: installTorch };
  const oracles = { name: "the tests' Python oracle", done: () => oracleStamp().current(), run: installOracle };
  return [...(ownTorch ? [environment, torch] : []), ...(tests ? [oracles] : [])];
}

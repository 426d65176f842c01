// Ray in an environment of its own, in the cache; Slurm from the distribution's packages, where it is not there.
import { rmSync } from "node:fs";
import { join } from "node:path";
import { cacheDirectory } from "../../../native/setup/locate.mjs";
import { capture, run, stampIn } from "../../../native/setup/run.mjs";
import { findPython } from "../../../native/setup/tools.mjs";

const ray = "ray[default]==2.60.0";
const slurm = ["slurm-wlm", "munge"];
const attempts = 3;

/** Resolves with the folder of its commands. Rejects with an error whose `network` says whether that is to blame. */
export function install(kind) {
  return kind === "ray" ? installRay() : installSlurm();
}

async function installRay() {
  const folder = join(cacheDirectory(), "test-ray");
  const stamp = stampIn(folder, "installed", ray);
  const bin = join(folder, "bin");
  if (stamp.current()) return bin;
  rmSync(folder, { recursive: true, force: true });
  console.log(`installing ${ray} into ${folder} …`);
  await run(findPython().command ?? "python3", ["-m", "venv", folder], { minutes: 3, what: "python -m venv" });
  const words = ["-m", "pip", "--disable-pip-version-check", "install", ray];
  await again(() => run(join(bin, "python"), words, { minutes: 15, what: "pip install" }));
  stamp.write();
  return bin;
}

async function installSlurm() {
  if (await capture("sh", ["-c", "command -v slurmctld && command -v slurmd && command -v munged"])) return "/usr/sbin";
  console.log(`installing ${slurm.join(", ")} …`);
  const env = { DEBIAN_FRONTEND: "noninteractive" };
  const install = ["install", "-y", "--no-install-recommends", ...slurm];
  await again(async () => {
    await run("apt-get", ["update"], { minutes: 5, env });
    await run("apt-get", install, { minutes: 10, env });
  });
  return "/usr/sbin";
}

/** A network that fails once may not fail twice. */
async function again(work) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (attempt === attempts || !error.network) throw error;
    }
  }
}

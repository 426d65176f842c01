import { execFileSync, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { until } from "../processes.ts";
import { type Host, hosts, onHost, ownAddress } from "./hosts.ts";
import type { TestCluster } from "./tier.ts";

/** A controller on this machine, and a node on each host. */
export function slurmCluster(home: string): TestCluster {
  const folder = join(home, "slurm");
  const env = { SLURM_CONF: join(folder, "slurm.conf") };
  const run = (command: string, ...words: string[]) =>
    execFileSync(command, words, {
      env: { ...process.env, ...env },
      encoding: "utf8",
      stdio: ["ignore", "pipe", "pipe"],
    });
  const startNode = (index: number) => {
    const words = onHost(hosts[index]!, home, ["slurmd", "-N", `n${index + 1}`]);
    run(words[0]!, ...words.slice(1));
  };
  // Its first answers may be none, as those of a controller that has just lost a node.
  const ask = (command: string, ...words: string[]) => {
    try {
      return run(command, "--noheader", ...words).trim();
    } catch {
      return "";
    }
  };
  const pids = ["slurmctld.pid", "munged.pid"].map((name) => join(folder, name));
  return {
    recipe: `launcher: { kind: slurm, host: ${hosts[0].address}, save_before: 60 }`,
    env,
    async start() {
      for (const name of ["state", "log", "munge"]) mkdirSync(join(folder, name), { recursive: true });
      const key = join(folder, "munge.key");
      writeFileSync(key, randomBytes(1024), { mode: 0o600 });
      writeFileSync(join(folder, "slurm.conf"), configuration(folder));
      writeFileSync(join(folder, "jobs.txt"), "");
      run("chown", "munge:munge", key, join(folder, "munge"));
      run("chmod", "755", home, folder, join(folder, "munge"));
      const munge = ["--force", `--key-file=${key}`, `--socket=${join(folder, "munge/munge.sock")}`];
      const files = ["pid", "log", "seed"].map((kind) => `--${kind}-file=${join(folder, `munged.${kind}`)}`);
      run("munged", ...munge, ...files);
      run("slurmctld");
      for (const index of hosts.keys()) startNode(index);
      await until("both nodes of Slurm", () => ask("sinfo", "--states=idle", "--format=%D") === "2", 60);
    },
    async restart() {
      const state = () => ask("sinfo", "--nodes=n2", "--format=%T");
      await until("Slurm to miss its node", () => /^down/.test(state()), 90);
      startNode(1);
      await until("Slurm's node to be back", () => /^(?!down)./.test(state()), 60);
      await this.hurry!();
    },
    // A job that goes back to the queue waits there for two minutes; in the second it ended in, it cannot start.
    async hurry() {
      const waiting = () => ask("squeue", "--states=PENDING", "--format=%i");
      const job = await until("the job to be queued again", waiting, 60);
      await sleep(3000);
      run("scontrol", "update", `jobid=${job}`, "StartTime=now");
    },
    jobs: async () => run("squeue", "--noheader", "--format=%i %T").split("\n").filter(Boolean),
    end() {
      for (const path of pids) spawnSync("sh", ["-c", `kill -9 $(cat ${path})`]);
    },
    log: () => readFileSync(join(folder, "log/slurmctld.log"), "utf8"),
  };
}

const nodeLine = ({ name, address }: Host, index: number) =>
  `NodeName=n${index + 1} NodeHostname=${name} NodeAddr=${address} Port=${18001 + index} CPUs=2 RealMemory=8000`;

const configuration = (folder: string) => `
ClusterName=molt
SlurmctldHost=${hostname().split(".")[0]}(${ownAddress})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=${folder}/munge/munge.sock
CredType=cred/munge
SlurmctldPort=6817
StateSaveLocation=${folder}/state
SlurmdSpoolDir=${folder}/spool-%n
SlurmctldPidFile=${folder}/slurmctld.pid
SlurmdPidFile=${folder}/slurmd-%n.pid
SlurmctldLogFile=${folder}/log/slurmctld.log
SlurmdLogFile=${folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
MinJobAge=300
JobRequeue=1
SchedulerType=sched/backfill
JobCompType=jobcomp/filetxt
JobCompLoc=${folder}/jobs.txt
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=5
${hosts.map(nodeLine).join("\n")}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`;

/**
 * A short quickstart over two nodes of a real cluster: to its end although a node dies, stopped in order, nothing left.
 */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { deadlineMs } from "../../src/deadline.ts";
import { messageOf } from "../../src/errors.ts";
import { foldRun } from "../../src/telemetry/fold.ts";
import { readEvents } from "../../src/telemetry/log.ts";
import { commandOf, isAlive, until } from "../processes.ts";
import { Tally } from "../tally.ts";
import { hosts, killHost, makeHosts, processesOn, removeHosts } from "./hosts.ts";
import { rayCluster } from "./ray.ts";
import { slurmCluster } from "./slurm.ts";

export interface TierOptions {
  kind: "ray" | "slurm";
  /** Folder of the cluster's commands. */
  bin: string;
  /** The built command line. */
  cli: string;
  recipes: string;
}

export interface TestCluster {
  /** Its section of a recipe. */
  recipe: string;
  /** For its commands. */
  env: Record<string, string>;
  start(): Promise<void>;
  /** Brings the second node back, once its death was noticed. */
  restart(): Promise<void>;
  /** Does not let a job that was queued again wait. */
  hurry?(): Promise<void>;
  /** That have not ended. */
  jobs(): Promise<string[]>;
  end(): void;
  log?(): string;
}

/** More than are done while a node is killed. */
const steps = 40;

/** Resolves with the exit code and the closing line. */
export async function runTier(options: TierOptions): Promise<{ code: number; line: string }> {
  const home = mkdtempSync(join(tmpdir(), "molt-cluster-"));
  const cluster = options.kind === "ray" ? rayCluster(home, options.bin) : slurmCluster(home);
  process.once("exit", () => {
    removeHosts();
    cluster.end();
    if (!process.env.MOLT_KEEP) rmSync(home, { recursive: true, force: true });
  });
  const tier = new Tier(options, cluster, home);
  const tally = new Tally();
  const check = async (name: string, body: () => Promise<void>) => {
    const before = tally.failed;
    await tally.check(name, body);
    if (tally.failed > before) console.log(tier.lastWords());
  };
  await check(`two nodes of ${options.kind}`, () => tier.begin());
  if (tally.failed === 0) {
    await check("a detached run has an engine and a rank on each node", () => tier.spreads());
    await check("it goes on to its end, though a node dies and comes back", () => tier.survives());
    if (cluster.hurry) await check("one that is told to save is queued again, and goes on", () => tier.requeues());
    await check("a run stops in order", () => tier.stops());
    await check("no process, no job, no file is left", () => tier.nothingLeft());
  }
  return tally.end;
}

class Tier {
  private readonly options: TierOptions;
  private readonly cluster: TestCluster;
  private readonly home: string;
  private readonly known = new Set<number>();
  private run = "";

  constructor(options: TierOptions, cluster: TestCluster, home: string) {
    this.options = options;
    this.cluster = cluster;
    this.home = home;
  }

  async begin(): Promise<void> {
    makeHosts(this.home);
    cpSync(this.options.recipes, join(this.home, "recipes"), { recursive: true });
    writeFileSync(join(this.home, "recipes/cluster.yaml"), recipe(this.cluster.recipe));
    await this.cluster.start();
  }

  async spreads(): Promise<void> {
    await this.start();
    await this.reaches(2);
    for (const host of hosts) {
      const commands = processesOn(host).map(commandOf);
      for (const verb of [" serve ", " rank "]) {
        assert.equal(
          commands.filter((one) => one.includes(verb)).length,
          1,
          `${verb} on ${host.name}:\n${commands.join("\n")}`,
        );
      }
    }
    const [row] = JSON.parse(await this.cli("runs", "--json"));
    assert.equal(row.state, "running");
  }

  async survives(): Promise<void> {
    this.remember();
    killHost(hosts[1]);
    await this.cluster.restart();
    // A job's run may be told to save, and go on as another attempt of the job.
    await until("the run's end", () => ["completed", "failed"].includes(this.state.state), 150);
    assert.ok(this.count("resumed") > this.resumes);
    assert.deepEqual([this.state.state, this.state.step], ["completed", steps], this.state.failure ?? "");
    assert.match(readFileSync(join(this.run, "export/config.json"), "utf8"), /qwen3/);
  }

  async requeues(): Promise<void> {
    await this.start("--run.steps", "100000");
    await this.reaches(2);
    const [job] = (await this.cluster.jobs())[0]!.split(" ");
    await this.command("scancel", "--batch", "--signal=USR2", job!);
    await until("the run to save", () => this.state.state === "interrupted", 60);
    const { step } = this.state;
    await this.cluster.hurry!();
    await this.reaches(step + 1);
  }

  async stops(): Promise<void> {
    if (this.state.state !== "running") {
      await this.start("--run.steps", "100000");
      await this.reaches(2);
    }
    this.remember();
    const said = JSON.parse(await this.cli("stop", this.run, "--json", "--timeout", "90"));
    assert.equal(said.state, "interrupted");
    assert.ok(said.step >= 2);
    assert.equal(this.count("checkpoint") > 0, true, "no checkpoint");
  }

  async nothingLeft(): Promise<void> {
    await until("the jobs to be gone", async () => (await this.cluster.jobs()).length === 0, 60);
    await until("the runs' processes to end", () => [...this.known].every((pid) => !isAlive(pid)));
    const left = hosts.flatMap(processesOn).map(commandOf);
    assert.deepEqual(
      left.filter((command) => command.includes(this.options.cli)),
      [],
    );
  }

  lastWords(): string {
    const events = this.run ? [...readEvents(join(this.run, "events.ndjson"))].slice(-15) : [];
    return events.map((event) => JSON.stringify(event).slice(0, 600)).join("\n");
  }

  private resumes = 0;

  private async start(...flags: string[]): Promise<void> {
    const words = ["run", "recipes/cluster.yaml", "--detach", "--json", ...flags];
    const said = JSON.parse(await this.cli(...words));
    this.run = said.run;
    this.known.add(said.process);
  }

  private async reaches(step: number): Promise<void> {
    await until(`step ${step}`, () => this.state.step >= step || this.state.state === "failed", 120);
    assert.equal(this.state.failure, null);
    this.resumes = this.count("resumed");
    this.remember();
  }

  private get state() {
    return foldRun(readEvents(join(this.run, "events.ndjson")));
  }

  private count(type: string): number {
    return [...readEvents(join(this.run, "events.ndjson"))].filter((event) => event.type === type).length;
  }

  /** Our processes on the hosts. */
  private remember(): void {
    for (const pid of hosts.flatMap(processesOn)) if (commandOf(pid).includes(this.options.cli)) this.known.add(pid);
  }

  private cli(...words: string[]): Promise<string> {
    return this.command(process.execPath, this.options.cli, ...words);
  }

  private command(name: string, ...words: string[]): Promise<string> {
    const env = { ...process.env, ...this.cluster.env };
    return new Promise((resolve, reject) => {
      execFile(name, words, { cwd: this.home, env, timeout: deadlineMs(150) }, (error, output, errors) => {
        if (error) reject(new Error(`${name} ${words.join(" ")}: ${messageOf(error)}\n${output}${errors}`));
        else resolve(output);
      });
    });
  }
}

/** The quickstart from random weights, in small steps, on two nodes. */
const recipe = (launcher: string) => `
extends: quickstart.yaml
run: { name: cluster, steps: ${steps} }
actor: { model_name_or_path: quickstart/model, init: random, num_nodes: 2 }
data: { max_samples: 64 }
rollout: { batch_size: 4, n_samples_per_prompt: 4 }
algo: { dynamic_filtering: "off" }
engine: { count: 2 }
eval: { steps: -1 }
ckpt: { save_steps: 1 }
${launcher}
`;

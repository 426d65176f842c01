import { execFileSync } from "node:child_process";
import { closeSync, openSync, rmSync } from "node:fs";
import { join } from "node:path";
import { request } from "undici";
import { deadlineMs } from "../../src/deadline.ts";
import { until } from "../processes.ts";
import { hosts, killHost, onHost, ownAddress } from "./hosts.ts";
import type { TestCluster } from "./tier.ts";

const [head, worker] = hosts;
const attempts = 3;
const url = `http://${head.address}:8265`;

/** A head and a worker. */
export function rayCluster(home: string, bin: string): TestCluster {
  const env = { ...process.env, RAY_enable_worker_prestart: "0", PATH: `${bin}:${process.env.PATH}` };
  const start = (host: typeof head, ...words: string[]): void => {
    // Given, they need not be waited for, which Ray does for a few seconds only.
    const agents = ["dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export", "runtime-env-agent"];
    const ports = agents.map((agent, index) => `--${agent}-port=${52365 + index}`);
    const common = [`--node-ip-address=${host.address}`, "--num-cpus=2", "--object-store-memory=100000000"];
    const all = onHost(host, home, [join(bin, "ray"), "start", ...common, ...ports, "--disable-usage-stats", ...words]);
    const log = openSync(join(home, `ray-${host.name}.log`), "a");
    for (let attempt = 1; ; attempt++) {
      try {
        // What it leaves running holds its output open: a pipe would never end.
        execFileSync(all[0]!, all.slice(1), { env, stdio: ["ignore", log, log], timeout: deadlineMs(60) });
        closeSync(log);
        return;
      } catch (error) {
        // On a busy machine its agents come later than it waits for them; the next time they are in memory.
        if (attempt === attempts) throw error;
        killHost(host);
      }
    }
  };
  // A socket's path has no room for a long one.
  const temporary = "/tmp/molt-ray";
  const startWorker = () => start(worker, `--address=${head.address}:6379`);
  const nodes = async () => {
    const { body } = await request(`${url}/api/v0/nodes?detail=1`);
    const { data } = (await body.json()) as { data: { result: { result: { state: string }[] } } };
    return data.result.result.filter(({ state }) => state === "ALIVE").length;
  };
  return {
    recipe: `launcher: { kind: ray, address: "${url}", host: ${ownAddress} }`,
    env: {},
    async start() {
      rmSync(temporary, { recursive: true, force: true });
      const dashboard = ["--dashboard-host=0.0.0.0", "--dashboard-port=8265"];
      start(head, "--head", "--no-monitor", "--port=6379", `--temp-dir=${temporary}`, ...dashboard);
      startWorker();
      await until("both nodes of Ray", async () => (await nodes().catch(() => 0)) === 2, 60);
    },
    restart: async () => startWorker(),
    async jobs() {
      const { body } = await request(`${url}/api/jobs/`);
      const jobs = (await body.json()) as { submission_id: string; status: string }[];
      const left = jobs.filter(({ status }) => status === "PENDING" || status === "RUNNING");
      return left.map(({ submission_id, status }) => `${submission_id} ${status}`);
    },
    end: () => rmSync(temporary, { recursive: true, force: true }),
  };
}

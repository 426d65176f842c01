import { execFileSync, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { isAlive } from "../processes.ts";

/** A network namespace that stands for a machine, with a name and an address of its own. */
export interface Host {
  name: string;
  address: string;
}

export const hosts: [Host, Host] = [
  { name: "molta", address: "10.77.0.1" },
  { name: "moltb", address: "10.77.0.2" },
];
/** Of this machine on the hosts' network. */
export const ownAddress = "10.77.0.254";
const bridge = "moltbr";

export function makeHosts(home: string): void {
  removeHosts();
  ip(`link add ${bridge} type bridge`, `addr add ${ownAddress}/24 dev ${bridge}`, `link set ${bridge} up`);
  for (const { name, address } of hosts) {
    ip(`netns add ${name}`, `link add v${name} type veth peer name eth0 netns ${name}`);
    ip(`link set v${name} master ${bridge} up`, `-n ${name} addr add ${address}/24 dev eth0`);
    ip(`-n ${name} link set eth0 up`, `-n ${name} link set lo up`, `-n ${name} route add default via ${ownAddress}`);
  }
  const names = [...hosts, { name: "localhost", address: "127.0.0.1" }];
  writeFileSync(join(home, "hosts"), names.map(({ name, address }) => `${address} ${name}\n`).join(""));
  // Nobody answers: what the file does not name is unknown at once.
  writeFileSync(join(home, "resolv.conf"), "options timeout:1 attempts:1\n");
}

/** Words that run a command on a host: its network, its name, its files of names. */
export function onHost({ name }: Host, home: string, words: string[]): string[] {
  const files = ["hosts", "resolv.conf"].map((file) => `mount --bind ${join(home, file)} /etc/${file}`).join(" && ");
  const enter = `hostname ${name} && ${files} && exec "$@"`;
  return ["nsenter", `--net=/run/netns/${name}`, "unshare", "--mount", "--uts", "sh", "-c", enter, "sh", ...words];
}

export function processesOn({ name }: Host): number[] {
  const { stdout } = spawnSync("ip", ["netns", "pids", name], { encoding: "utf8" });
  return stdout
    .split("\n")
    .map(Number)
    .filter((pid) => pid > 0 && isAlive(pid));
}

/** As when its power fails: nobody there gets to say a word. */
export function killHost(host: Host): void {
  for (let pids = processesOn(host); pids.length > 0; pids = processesOn(host)) {
    for (const pid of pids) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {} // it is gone
    }
  }
}

/** With everything on them. */
export function removeHosts(): void {
  for (const host of hosts) {
    killHost(host);
    // The namespace goes when the last of its processes has been waited for, its link with it: too late for the next.
    spawnSync("ip", ["link", "del", `v${host.name}`]);
    spawnSync("ip", ["netns", "del", host.name]);
  }
  spawnSync("ip", ["link", "del", bridge]);
}

function ip(...commands: string[]): void {
  for (const command of commands) execFileSync("ip", command.split(" "), { stdio: ["ignore", "ignore", "inherit"] });
}

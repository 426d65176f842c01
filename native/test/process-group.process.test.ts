import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { ProcessGroup, setThreads, versions } from "molt-native";
import { afterEach, describe, expect, it } from "vitest";
import { freePort } from "../../runner/src/launchers/free-port.ts";

type Step = { values: number[]; op: "sum" | "max" } | { barrier: true } | { die: true };

const children: ReturnType<typeof spawn>[] = [];

afterEach(() => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
});

function optionsOf(rank: number, port: number, timeoutMs = 20_000, worldSize = 2) {
  return { host: "127.0.0.1", port, rank, worldSize, prefix: "test", serveStore: rank === 0, timeoutMs };
}

/** Another process as rank 1. Resolves with what its all-reduces printed. */
async function peer(port: number, steps: Step[], timeoutMs?: number): Promise<number[][]> {
  const job = JSON.stringify({ options: optionsOf(1, port, timeoutMs), steps });
  const child = spawn(process.execPath, [fileURLToPath(new URL("peer.mjs", import.meta.url)), job]);
  children.push(child);
  const [output, errors] = await Promise.all([text(child.stdout!), text(child.stderr!)]);
  expect(errors).toBe("");
  return output
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
}

async function connects(host: string, port: number): Promise<boolean> {
  const socket = connect(port, host);
  try {
    return await once(socket, "connect").then(Boolean, () => false);
  } finally {
    socket.destroy();
  }
}

describe("ProcessGroup", () => {
  it("reduces over two processes, in float64, and leaves the input alone", async () => {
    const port = await freePort();
    const steps: Step[] = [{ values: [1, 0.1, -5], op: "sum" }, { barrier: true }, { values: [1, 9, -5], op: "max" }];
    const other = peer(port, steps);
    const group = await ProcessGroup.create(optionsOf(0, port));
    expect([group.rank, group.worldSize]).toEqual([0, 2]);
    const input = Float64Array.of(2 ** 40, 0.2, 5);
    const summed = await group.allReduce(input, "sum");
    await group.barrier();
    const largest = await group.allReduce(Float64Array.of(2, 3, -7), "max");
    group.close();
    expect(Array.from(summed)).toEqual([2 ** 40 + 1, 0.1 + 0.2, 0]);
    expect(Array.from(largest)).toEqual([2, 9, -5]);
    expect(Array.from(input)).toEqual([2 ** 40, 0.2, 5]);
    expect(await other).toEqual([Array.from(summed), Array.from(largest)]);
  });

  it("rejects when a peer dies, and so does everything after", async () => {
    const port = await freePort();
    const other = peer(port, [{ barrier: true }, { die: true }]);
    const group = await ProcessGroup.create(optionsOf(0, port));
    await group.barrier();
    await expect(group.allReduce(Float64Array.of(1), "sum")).rejects.toThrow(
      /all-reduce of group 'test' \(rank 0 of 2\)/,
    );
    await expect(group.barrier()).rejects.toThrow(/barrier of group 'test'/);
    group.close();
    await other;
  });

  it("rejects at its deadline when a peer stays silent", async () => {
    const port = await freePort();
    const other = peer(port, [{ barrier: true }, { barrier: true }]);
    const group = await ProcessGroup.create(optionsOf(0, port, 6000));
    await group.barrier();
    children[0]!.kill("SIGSTOP");
    await expect(group.allReduce(Float64Array.of(1), "sum")).rejects.toThrow(/all-reduce of group 'test'.*failed/s);
    group.close();
    children[0]!.kill("SIGKILL");
    await other;
  });

  it("rejects where no peer comes, naming the address", async () => {
    const port = await freePort();
    await expect(ProcessGroup.create(optionsOf(0, port, 1000))).rejects.toThrow(
      new RegExp(`group 'test' \\(rank 0 of 2\\) did not form at 127.0.0.1:${port}`),
    );
    await expect(ProcessGroup.create(optionsOf(1, port, 1000))).rejects.toThrow(/did not form/);
  });

  it("closes twice, gives its port back and refuses later calls", async () => {
    const port = await freePort();
    const group = await ProcessGroup.create(optionsOf(0, port, 2000, 1));
    group.close();
    group.close();
    await expect(group.barrier()).rejects.toThrow(/is closed/);
    const server = createServer().listen(port, "127.0.0.1");
    await once(server, "listening");
    server.close();
  });

  it("serves its store at its host's address alone, which no other of this machine's reaches", async () => {
    const port = await freePort();
    const group = await ProcessGroup.create(optionsOf(0, port, 2000, 1));
    // Linux has all of 127.0.0.0/8 on its loopback.
    const reached = await Promise.all(["127.0.0.1", "127.0.0.2"].map((host) => connects(host, port)));
    group.close();
    expect(reached).toEqual([true, false]);
  });

  it("does not serve its store at an address that is not this machine's", async () => {
    // Of 192.0.2.0/24, which is for documents (RFC 5737).
    const options = { ...optionsOf(0, await freePort(), 2000, 1), host: "192.0.2.1" };
    await expect(ProcessGroup.create(options)).rejects.toThrow(/cannot listen at 192\.0\.2\.1:\d+: Cannot assign/);
  });

  it("refuses a rank outside the group", () => {
    expect(() => ProcessGroup.create({ ...optionsOf(0, 1), rank: 2 })).toThrow(/rank must lie/);
  });
});

describe("the native thread", () => {
  it("runs calls in order and says its versions", async () => {
    const order: number[] = [];
    await Promise.all([1, 2, 3].map((count) => setThreads(count % 2 === 0 ? 2 : 1).then(() => order.push(count))));
    expect(order).toEqual([1, 2, 3]);
    expect(versions().torch).toMatch(/^2\.\d+/);
    await expect(setThreads(0)).rejects.toThrow(/positive number of threads/);
  });
});

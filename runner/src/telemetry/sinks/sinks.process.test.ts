import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { until } from "../../../test/processes.ts";
import { isAlive } from "../../loop/run-directory.ts";
import { readRecipe } from "../../recipe/load.ts";
import type { RunEvent } from "../events.ts";
import { EventLog } from "../log.ts";
import { startSinks } from "./index.ts";
import { eventRecord, field, summary } from "./tensorboard.ts";

let directory = "";
let log: EventLog;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "sinks-"));
  writeFileSync(join(directory, "recipe.yaml"), "actor: { model_name_or_path: m }\n");
  log = new EventLog(join(directory, "events.ndjson"));
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(directory, { recursive: true });
});

const start = (flags: Record<string, string>) => {
  const { recipe } = readRecipe(join(directory, "recipe.yaml"), flags);
  return startSinks(recipe, { path: directory, runId: "r" }, log);
};
const stepTo = (step: number, metrics: Record<string, number>): RunEvent => ({
  type: "step",
  step,
  policyVersion: step,
  metrics,
});
const evalAt = (step: number): RunEvent => ({ type: "eval", step, policyVersion: step, metrics: { accuracy: 0.5 } });
const told = () => [...log.read()].filter(({ type }) => type === "warning" || type === "log");

test("a recipe that names no sink has none", async () => {
  const before = readdirSync(directory);
  const close = await start({});
  log.emit(stepTo(1, { reward: 1 }));
  await close();
  log.flush();
  expect(readdirSync(directory)).toEqual([...before, "events.ndjson"].sort());
});

describe("TensorBoard", () => {
  // The bytes are TensorBoard's own: fixtures/make_event_file.py.
  test("records are byte for byte what TensorBoard writes", () => {
    const theirs = readFileSync(new URL("fixtures/events.tfevents", import.meta.url));
    const ours = [
      eventRecord(1764460800.25, 7, summary({ "train/reward": 0.125, "train/loss": -3.5e-5 })),
      eventRecord(1764460801.5, 300, summary({ "eval/accuracy": 1, "train/größe": 2 ** 40 })),
      eventRecord(1764460802, 2 ** 31 + 1, field(7, Buffer.from([8, 1]))),
    ];
    expect(Buffer.concat(ours)).toEqual(theirs);
  });

  test("each run has a folder; finite figures of every n-th step and of evals; a resume supersedes", async () => {
    const close = await start({ "logger.tensorboard_dir": join(directory, "tb"), "logger.logging_steps": "2" });
    const emit = (said: RunEvent) => log.emit(said);
    emit(stepTo(1, { reward: 1 }));
    emit({ ...stepTo(2, { reward: 2, gap: Number.NaN }), seconds: { wait: 0.5 } } as RunEvent);
    emit(evalAt(3));
    emit({ type: "resumed", fromStep: 1, totalSteps: 4 });
    await close();
    const [name, ...others] = readdirSync(join(directory, "tb", "r"));
    expect([name!.startsWith("events.out.tfevents."), others]).toEqual([true, []]);
    const written = readFileSync(join(directory, "tb", "r", name!));
    const [step, evaluated, resumed] = [...log.read()].slice(1);
    const rest = Buffer.concat([
      eventRecord(step!.time, 2, summary({ "train/reward": 2, "seconds/wait": 0.5 })),
      eventRecord(evaluated!.time, 3, summary({ "eval/accuracy": 0.5 })),
      eventRecord(resumed!.time, 2, field(7, Buffer.from([8, 1]))),
    ]);
    expect(written.subarray(-rest.length)).toEqual(rest);
    expect(written.subarray(0, -rest.length).includes("brain.Event:2")).toBe(true);
  });
});

describe("Prometheus", () => {
  const freePort = async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    const { port } = server.address() as AddressInfo;
    return { port, server };
  };

  test("/metrics has the newest figures, on loopback, until the run ends", async () => {
    const { port, server } = await freePort();
    await new Promise((resolve) => server.close(resolve));
    const close = await start({ "logger.prometheus_port": String(port) });
    log.emit(stepTo(1, { reward: 0.25 }));
    log.emit(stepTo(2, { reward: 0.5 }));
    log.emit(evalAt(2));
    const url = `http://127.0.0.1:${port}`;
    const text = await (await fetch(`${url}/metrics`)).text();
    for (const line of [
      "# TYPE molt gauge",
      'molt{name="step"} 2',
      'molt{name="train/reward"} 0.5',
      'molt{name="eval/accuracy"} 0.5',
    ]) {
      expect(text.split("\n")).toContain(line);
    }
    expect((await fetch(`${url}/recipe.yaml`)).status).toBe(404);
    await close();
    await expect(fetch(`${url}/metrics`)).rejects.toThrow();
  });

  test("it listens where the recipe says: an address of another machine is an error", async () => {
    // 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
    const elsewhere = { "logger.prometheus_port": "9464", "logger.prometheus_host": "192.0.2.1" };
    await expect(start(elsewhere)).rejects.toThrow("EADDRNOTAVAIL");
  });

  test("a port that is taken is an error before anything trains", async () => {
    const { port, server } = await freePort();
    try {
      await expect(start({ "logger.prometheus_port": String(port) })).rejects.toThrow(
        /^Prometheus cannot be opened: .*EADDRINUSE/,
      );
    } finally {
      server.close();
    }
  });
});

describe("W&B", () => {
  /** A package of that name that writes down how it is called. */
  const fakePackage = (body: string) => {
    mkdirSync(join(directory, "packages"));
    writeFileSync(join(directory, "packages", "wandb.py"), body);
    vi.stubEnv("PYTHONPATH", join(directory, "packages"));
  };
  const recording = `
import json
class Run:
    def define_metric(self, name, **more): note("define_metric", name, more)
    def log(self, values): note("log", values)
    def finish(self): note("finish")
def note(*call):
    with open("CALLS", "a") as file: file.write(json.dumps(call) + "\\n")
def init(**more):
    note("init", more)
    return Run()
`;
  const flags = { "logger.wandb.project": "sorting", "logger.wandb.org": "us", "logger.wandb.group": "g" };

  test("its package is told of the run, then of its figures, and closed", async () => {
    const calls = join(directory, "calls.ndjson");
    fakePackage(recording.replace("CALLS", calls));
    const close = await start(flags);
    log.emit(stepTo(1, { reward: 0.25 }));
    log.emit(evalAt(1));
    await close();
    const lines = readFileSync(calls, "utf8").trim().split("\n");
    const [init, ...rest] = lines.map((line) => JSON.parse(line));
    expect(init[1]).toEqual({
      ...{ project: "sorting", entity: "us", group: "g", id: "r", name: "r", resume: "allow", dir: directory },
      config: { actor: { model_name_or_path: "m" } },
    });
    expect(rest).toEqual([
      ["define_metric", "*", { step_metric: "step" }],
      ["log", { "train/reward": 0.25, step: 1 }],
      ["log", { "eval/accuracy": 0.5, step: 1 }],
      ["finish"],
    ]);
    expect(told()).toEqual([]);
  });

  test.each([
    ["no package", { "logger.wandb.python": "python3" }, /cannot load the wandb package \(.*no such thing/],
    ["no Python", { "logger.wandb.python": "/nowhere/python" }, /cannot load the wandb package \(.*ENOENT/],
  ])("%s: one error with its fix, before anything trains", async (_, more, message) => {
    fakePackage('raise ImportError("no such thing")');
    await expect(start({ ...flags, ...more })).rejects.toThrow(message);
  });

  test("when it does not end, it is ended, and that is said", async () => {
    const file = join(directory, "pid");
    const hanging = `open(${JSON.stringify(file)}, "w").write(str(os.getpid())); time.sleep(1000)`;
    fakePackage(`import os, time\n${recording.replace("CALLS", "/dev/null").replace('note("finish")', hanging)}`);
    const close = await start(flags);
    log.emit(stepTo(1, { reward: 0.25 }));
    vi.stubEnv("MOLT_DEADLINE_SCALE", "0.1");
    await close();
    const message = "W&B: waited 60 s for W&B to take the last figures; training goes on without it";
    expect(told()).toMatchObject([{ type: "warning", message }]);
    const pid = Number(readFileSync(file, "utf8"));
    expect(pid).toBeGreaterThan(0);
    await until("its end", () => !isAlive(pid));
  });

  test("when it dies, training goes on: warned of once, losses counted", async () => {
    fakePackage(recording.replace('note("init", more)', 'raise RuntimeError("no network")'));
    const close = await start(flags);
    const warned = new Promise((resolve) => log.onEvent(({ type }) => type === "warning" && resolve(null)));
    await warned;
    log.emit(stepTo(1, { reward: 0.25 }));
    log.emit(evalAt(1));
    await close();
    expect(told()).toMatchObject([
      { type: "warning", message: "W&B: RuntimeError: no network; training goes on without it" },
      { type: "warning", message: "W&B: 2 steps and evals are missing there" },
    ]);
  });
});

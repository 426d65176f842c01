import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isAlive, until } from "../../test/processes.ts";
import { type CommandAgentOptions, commandAgent } from "./command-agent.ts";
import type { ChatContext, Row } from "./types.ts";

const row: Row = { id: "r:1", messages: [{ role: "user", content: "é" }], label: "7", fields: { table: { a: 1 } } };
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "molt-command-"));
});
afterAll(() => rm(folder, { recursive: true }));

/** Runs JavaScript as the command. */
function run(source: string, options: Partial<CommandAgentOptions> = {}, signal = new AbortController().signal) {
  const agent = commandAgent({
    command: [process.execPath, "-e", source],
    grader: null,
    folder,
    rewardSeconds: 20,
    ...options,
  });
  const context: ChatContext = { row, baseUrl: "http://127.0.0.1:9/s/x/v1", apiKey: "key", model: "policy", signal };
  return Promise.resolve(agent(context));
}

/** JavaScript that leaves its process's id in a file, and what reads it: 0 until it is there. */
function leavesId(name: string) {
  const file = join(folder, name);
  const [whole, part] = [file, `${file}.part`].map((path) => JSON.stringify(path));
  const write = `require("fs").writeFileSync(${part}, String(process.pid));`;
  const source = `${write} require("fs").renameSync(${part}, ${whole});`;
  return { name, source, pid: () => (existsSync(file) ? Number(readFileSync(file, "utf8")) : 0) };
}

const stays = "setInterval(() => {}, 1000);";

/** One that nobody has waited for yet is gone too. */
async function expectGone(pid: number): Promise<void> {
  expect(pid).toBeGreaterThan(0);
  await until("what was left running to end", () => !isAlive(pid));
}

const print = (expression: string) => `console.log(JSON.stringify({ reward: 1, info: ${expression} }))`;
const readRow = `const row = JSON.parse(require("fs").readFileSync(0, "utf8"));`;

describe("what a command gets", () => {
  test("the row on its standard input", async () => {
    const source = `${readRow} console.log(JSON.stringify({ reward: row.fields.table.a, score: Number(row.label),
      info: { id: row.id.length, text: row.messages[0].content.length } }))`;
    expect(await run(source)).toEqual({ reward: 1, score: 7, info: { id: 3, text: 1 } });
  });

  test("the address of the model, and nothing of the runner's own environment", async () => {
    process.env.MOLT_PLANTED_SECRET = "planted";
    const source = `throw new Error(JSON.stringify(process.env))`;
    const error = await run(source).catch((thrown: Error) => thrown.message);
    delete process.env.MOLT_PLANTED_SECRET;
    expect(error).toContain('"OPENAI_BASE_URL":"http://127.0.0.1:9/s/x/v1"');
    expect(error).toContain('"ANTHROPIC_BASE_URL":"http://127.0.0.1:9/s/x"');
    expect(error).toContain('"OPENAI_API_KEY":"key"');
    expect(error).not.toContain("planted");
  });

  test("an empty folder of its own, which is removed", async () => {
    const source = `const fs = require("fs"); const before = fs.readdirSync(".").length;
      fs.writeFileSync("note", "x"); const home = process.env.HOME === process.cwd() ? 1 : 0;
      ${print("{ before, home }")}`;
    expect(await run(source)).toMatchObject({ info: { before: 0, home: 1 } });
    const error = (await run(`throw new Error("in " + process.cwd() + " end")`).catch((thrown) => thrown)) as Error;
    const folder = /in (\S+) end/.exec(error.message)![1]!;
    expect(folder).toContain("rollout-");
    expect(existsSync(folder)).toBe(false);
  });
});

describe("the reward", () => {
  test.each([
    ["the last JSON line", `console.log('{"reward": 0}'); console.log('{"reward": 0.5}\\nbye')`, 0.5],
    ["a number alone", `console.log("log"); console.log("-1.5")`, -1.5],
    ["before lines that only begin as one does", `console.log("1e-1\\n2026-11-30 bye\\n- end\\n3 files")`, 0.1],
    ["after more output than is kept", `console.log("x\\n".repeat(2e6)); console.log('{"reward": 2}')`, 2],
    ["without reading its input", `process.stdin.destroy(); console.log('{"reward": 3}')`, 3],
  ])("%s", async (_, source, reward) => {
    expect(await run(source)).toMatchObject({ reward });
  });

  // Case D7.
  test.each([
    ["nothing", "", "printed no line of JSON"],
    [
      "a line that is no JSON",
      `console.log('{"reward": 1}'); console.log('{"reward": NaN}')`,
      'its reward: {"reward": NaN}',
    ],
    ["a text", `console.log('{"reward": "1"}')`, 'returned the reward "1"'],
    ["null", `console.log('{"reward": null}')`, "returned the reward null"],
  ])("%s is a failure", async (_, source, message) => {
    await expect(run(source)).rejects.toMatchObject({ reason: "reward", message: expect.stringContaining(message) });
  });

  test("a grader sees the row and the output, and says the reward instead", async () => {
    const grader = [
      process.execPath,
      "-e",
      `const { row, output } = JSON.parse(require("fs").readFileSync(0, "utf8"));
      console.log(JSON.stringify({ reward: output.trim() === row.label ? 1 : 0 }))`,
    ];
    expect(await run("console.log(7)", { grader })).toMatchObject({ reward: 1 });
    expect(await run("console.log(8)", { grader })).toMatchObject({ reward: 0 });
  });

  // Case D7.
  test("a grader that fails or hangs", async () => {
    const failing = [process.execPath, "-e", `throw new Error("no judge")`];
    const failure = { reason: "reward", message: expect.stringContaining("no judge") };
    await expect(run("console.log(7)", { grader: failing })).rejects.toMatchObject(failure);
    const id = leavesId("grader");
    const hanging = [process.execPath, "-e", id.source + stays];
    await expect(run("console.log(7)", { grader: hanging, rewardSeconds: 5 })).rejects.toMatchObject({
      reason: "grader_timeout",
      message: `waited 5 s for the grader ${process.execPath}`,
    });
    await expectGone(id.pid());
  });

  // Case D7.
  test("null is nothing, as Python's json writes None", async () => {
    const source = `console.log('{"reward": 1, "score": null, "info": null}')`;
    expect(await run(source)).toEqual({ reward: 1, score: undefined, info: {} });
  });
});

describe("its end", () => {
  test("a program that fails names its last lines; one that is not there is named", async () => {
    await expect(run(`console.error("no such move"); process.exit(3)`)).rejects.toThrow(
      /ended with code 3: no such move$/,
    );
    await expect(run("", { command: ["no-such-program"] })).rejects.toThrow(
      /^no-such-program ended with code 127: .*not found/,
    );
  });

  test("it is killed with all that it started when its signal aborts", async () => {
    const controller = new AbortController();
    const [own, child] = [leavesId("own"), leavesId("child")];
    const source = `process.on("SIGTERM", () => {}); ${own.source}
      require("child_process").spawn(process.execPath, ["-e", ${JSON.stringify(child.source + stays)}],
      { stdio: "inherit" }); ${stays}`;
    const ended = run(source, {}, controller.signal);
    ended.catch(() => {});
    await expect.poll(() => child.pid()).toBeGreaterThan(0);
    controller.abort();
    await expect(ended).rejects.toThrow("was killed");
    for (const { pid } of [own, child]) await expectGone(pid());
  });

  /** Starts a process, waits for it, and ends with a reward. */
  const leaving = (id: ReturnType<typeof leavesId>, options: string) =>
    `require("child_process").spawn(process.execPath, ["-e", ${JSON.stringify(id.source + stays)}],
      { stdio: "inherit", ${options} }).unref();
    setInterval(() => {
      if (!require("fs").readdirSync(${JSON.stringify(folder)}).includes(${JSON.stringify(id.name)})) return;
      console.log('{"reward": 1}'); process.exit(0);
    }, 20)`;

  test("what it left running is killed when it ends", async () => {
    const id = leavesId("left");
    expect(await run(leaving(id, ""))).toMatchObject({ reward: 1 });
    await expectGone(id.pid());
  });

  // Invariant 5.
  test("a process that left its group and holds the output open is not waited for", async () => {
    const id = leavesId("escaped");
    expect(await run(leaving(id, "detached: true"))).toMatchObject({ reward: 1 });
    process.kill(id.pid(), "SIGKILL");
  });

  test("it does not outlive a runner that is killed", async () => {
    const id = leavesId("orphan");
    const runner = join(folder, "runner.mjs");
    const options = { command: [process.execPath, "-e", id.source + stays], grader: null, folder, rewardSeconds: 20 };
    const contents = `import { commandAgent } from "./command-agent.ts";
      const { signal } = new AbortController();
      commandAgent(${JSON.stringify(options)})({ row: {}, baseUrl: "", apiKey: "", signal });`;
    const resolveDir = fileURLToPath(new URL(".", import.meta.url));
    await build({ stdin: { contents, resolveDir }, bundle: true, platform: "node", format: "esm", outfile: runner });
    const child = spawn(process.execPath, [runner], { stdio: "inherit" });
    const ended = once(child, "exit");
    await expect.poll(() => id.pid()).toBeGreaterThan(0);
    child.kill("SIGKILL");
    await ended;
    await expectGone(id.pid());
  });
});

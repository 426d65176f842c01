import { existsSync, readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { Ajv } from "ajv";
import { expect, test } from "vitest";
import { Tokenizer } from "../../data/tokenizer.ts";
import { pythonTool, shellTool } from "./tools.ts";

const python = pythonTool();
const shell = shellTool();
const run = (code: string, tool = python) => tool.call({ code });

/** Seconds that no other process sleeps for. */
const long = `1000.${process.pid}`;
const isolates = async () => (await shellTool({ network: true }).call({ command: "unshare -rnpf true" })) === "";

/** Whether a process has the word in its command line. */
function isAtWork(word: string): boolean {
  return readdirSync("/proc").some((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(word);
    } catch {
      return false; // no process, or none any more
    }
  });
}

test("what is printed is what the policy reads, errors after it", async () => {
  expect(await run("print(6 * 7)")).toBe("42");
  expect(await run("print('é', 1)\nraise ValueError('no such row')")).toMatch(
    /^é 1\nTraceback .*ValueError: no such row\n\[exit code 1\]$/s,
  );
  expect(await shell.call({ command: "echo one; echo two >&2; exit 3" })).toBe("one\ntwo\n[exit code 3]");
  expect(await run("pass")).toBe("");
});

test("a call is arguments or the whole call, an object or JSON; a wrong one is an answer", async () => {
  const wrong = 'error: the arguments must be a JSON object with the text "code"';
  for (const given of [
    { code: "print(1)" },
    '{"code": "print(1)"}',
    '{"name": "python", "arguments": {"code": "print(1)"}}',
  ]) {
    expect(await python.call(given)).toBe("1");
  }
  expect(await python.call({ name: "python", arguments: '{"code": "print(1)"}' })).toBe("1");
  for (const given of ["{", "[]", "null", null, undefined, 3, "{}", { code: 3 }, { arguments: "x" }]) {
    expect(await python.call(given)).toBe(wrong);
  }
  expect(await run("x".repeat(200_000))).toContain("error: too long");
  expect(await run("print('\0')")).toContain("null character");
});

test("the schema is what a chat template takes, and what calls are held to", async () => {
  const { parameters } = python.schema.function;
  const validate = new Ajv().compile(parameters);
  expect([validate({ code: "1" }), validate({}), validate({ code: 1 })]).toEqual([true, false, false]);
  const model = fileURLToPath(new URL("../../data/fixtures/bytelevel", import.meta.url));
  const tokenizer = await Tokenizer.load(model);
  const rendered = tokenizer.renderChat([{ role: "user", content: "hi" }], { tools: [python.schema] });
  expect(rendered).toContain(python.schema.function.description);
});

test("each call has an empty folder of its own, and nothing of the runner's environment", async () => {
  process.env.MOLT_PLANTED_SECRET = "planted";
  const code = "import os; print(len(os.listdir('.')), os.environ['HOME'], os.getcwd(), 'planted' in str(os.environ))";
  const seen = [await run(`${code}\nopen('note', 'w').write('x')`), await run(code)];
  delete process.env.MOLT_PLANTED_SECRET;
  for (const [, home, folder] of seen.map((line) => /^0 (\S+) (\S+) False$/.exec(line)!)) {
    expect(folder).toBe(home);
    expect(existsSync(folder!)).toBe(false);
  }
  expect(seen[0]).not.toBe(seen[1]);
});

test("time, memory and output are limited, and reaching a limit is an answer", async () => {
  const started = run(`import time; print(1, flush=True)\ntime.sleep(${long})`, pythonTool({ timeout: 5 }));
  await expect.poll(() => isAtWork(long)).toBe(true);
  expect(await started).toBe("1\n[killed after 5 s]");
  await expect.poll(() => isAtWork(long)).toBe(false);
  const hungry = await run("x = bytearray(10 ** 9)", pythonTool({ memory: 256 }));
  expect(hungry).toMatch(/MemoryError\n\[exit code 1\]$/);
  expect(await run("x = bytearray(10 ** 8); print(len(x))", pythonTool({ memory: 512 }))).toBe("100000000");
  const much = await run("print('a' * 5_000_000 + 'end')", pythonTool({ output: 100 }));
  expect(much).toBe(`[…]${"a".repeat(97)}end`);
});

test("what a call started is killed with it", async () => {
  // In a session of its own it leaves the group that is killed; where the system allows, it cannot leave the namespace.
  for (const begin of ["", ...((await isolates()) ? ["setsid "] : [])]) {
    expect(await shell.call({ command: `${begin}sleep ${long} & echo started` })).toBe("started");
    await expect.poll(() => isAtWork(long)).toBe(false);
  }
});

test("a rollout that is over ends its call", async () => {
  const controller = new AbortController();
  const ended = shell.call({ command: "sleep 1000" }, controller.signal);
  setTimeout(() => controller.abort(), 300);
  expect(await ended).toBe("[killed]");
});

test("there is no network unless it is asked for", async () => {
  const server = createServer((_, response) => response.end("reached"));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const code = `import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1:${port}').read().decode())`;
  expect(await run(code, pythonTool({ network: true }))).toBe("reached");
  // Where the system allows it.
  expect(await run(code)).toMatch((await isolates()) ? /Network is unreachable/ : /^reached$/);
  server.close();
});

test("a program that cannot be started is no outcome of the policy's", async () => {
  const { PATH } = process.env;
  process.env.PATH = "/nowhere";
  const tool = pythonTool();
  const outcome = await tool.call({ code: "1" }).catch((error: Error) => error.message);
  process.env.PATH = PATH;
  expect(outcome).toBe("a tool cannot start python3 -I -c");
  // Nor does it stay so.
  expect(await tool.call({ code: "print(2)" })).toBe("2");
});

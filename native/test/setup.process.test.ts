import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { torchDirectory } from "../setup/locate.mjs";

const setupFolder = fileURLToPath(new URL("../setup/", import.meta.url));
/** The libtorch that this checkout is set up with. */
const libtorch = torchDirectory()!;

let cache: string;
beforeEach(() => {
  cache = mkdtempSync(join(tmpdir(), "molt-setup-"));
});
afterEach(() => rmSync(cache, { recursive: true, force: true }));

interface Outcome {
  code: number | null;
  output: string;
}

async function node(args: string[], env: Record<string, string> = {}): Promise<Outcome> {
  const options = { env: { ...process.env, MOLT_CACHE: cache, ...env }, stdio: "pipe" } as const;
  const child = spawn(process.execPath, args, options);
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  const [out, errors] = await Promise.all([text(child.stdout), text(child.stderr)]);
  return { code: await ended, output: out + errors };
}

const setUp = (flags: string[], env?: Record<string, string>) => node([join(setupFolder, "main.mjs"), ...flags], env);

/** Evaluates an expression over what a module of the set-up exports. */
async function evaluate(module: string, expression: string, env?: Record<string, string>): Promise<Outcome> {
  const code = `const m = await import(${JSON.stringify(join(setupFolder, module))});
    try { console.log(JSON.stringify(await (${expression}))); } catch (error) { console.log(error.message); }`;
  return node(["--input-type=module", "-e", code], env);
}

describe("set-up", () => {
  it("names every missing tool with its fix before any work", async () => {
    const { code, output } = await setUp([], { PATH: "", CXX: "" });
    expect(code).toBe(1);
    expect(output).toMatch(/missing: npm .*Python \(3\.10 or newer.*C\+\+20 compiler \(g\+\+ 11/);
    expect(output).toMatch(/fix: .*(apt-get|dnf|brew) install.*g\+\+|gcc-c\+\+|llvm/);
    expect(output).not.toContain("    at ");
    expect(readdirSync(cache)).toEqual([]);
  });

  it("refuses a MOLT_LIBTORCH that is not libtorch", async () => {
    const { code, output } = await setUp([], { MOLT_LIBTORCH: cache });
    expect(code).toBe(1);
    expect(output).toContain(`MOLT_LIBTORCH=${cache} is not libtorch: it has no include/ATen/ATen.h, no lib`);
    expect(output).toContain("fix: ");
    expect(readdirSync(cache)).toEqual([]);
  });

  it("refuses an unknown flag with exit code 2", async () => {
    const { code, output } = await setUp(["--nativ"]);
    expect(code).toBe(2);
    expect(output).toContain("--nativ");
  });

  it("takes the addon from the cache, and nothing else for it", async () => {
    const env = { MOLT_LIBTORCH: libtorch };
    const location = JSON.parse((await evaluate("locate.mjs", "m.addonLocation()", env)).output);
    const missing = (await evaluate("locate.mjs", "m.addonPath()", env)).output;
    expect(missing).toContain("the native part is not set up for these sources");
    expect(missing).toContain("npm run setup");

    // What a killed build leaves: a folder aside, objects, but no addon under its name.
    mkdirSync(join(cache, "aside-1"));
    writeFileSync(join(cache, "aside-1", "molt_native.node"), "half");
    mkdirSync(join(cache, "build-1"));
    expect((await evaluate("locate.mjs", "m.addonPath()", env)).output).toContain("is not set up");

    mkdirSync(dirname(location), { recursive: true });
    writeFileSync(location, "");
    expect(JSON.parse((await evaluate("locate.mjs", "m.addonPath()", env)).output)).toBe(location);
    const phase = await evaluate("addon.mjs", "m.addonPhase().done()", env);
    expect(JSON.parse(phase.output)).toBe(true);
  });

  it("keys the addon by libtorch", async () => {
    const other = join(cache, "libtorch");
    mkdirSync(join(other, "include", "ATen"), { recursive: true });
    mkdirSync(join(other, "lib"));
    writeFileSync(join(other, "include", "ATen", "ATen.h"), "");
    const at = async (folder: string) =>
      (await evaluate("locate.mjs", "m.addonLocation()", { MOLT_LIBTORCH: folder })).output;
    expect(await at(libtorch)).toBe(await at(libtorch));
    expect(await at(other)).not.toBe(await at(libtorch));
  });

  it("shows the end of a failed command's output and blames the network where it was", async () => {
    const failing = (line: string) =>
      evaluate("run.mjs", `m.run("sh", ["-c", "echo before; echo '${line}' >&2; exit 3"], { what: "the fetch" })`);
    const plain = (await failing("no space left")).output;
    expect(plain).toContain("the fetch ended with exit code 3");
    expect(plain).toContain("before\n    no space left");
    expect(plain).not.toContain("network");
    expect((await failing("getaddrinfo ENOTFOUND registry.example")).output).toMatch(/fix: the network/);
    expect(readFileSync(join(cache, "setup.log"), "utf8")).toContain("no space left");
  });

  it("ends a command at its deadline, its children with it", async () => {
    const mark = join(cache, "mark");
    const script = `(sleep 2; echo > ${mark}) & wait`;
    const { output } = await evaluate("run.mjs", `m.run("sh", ["-c", ${JSON.stringify(script)}], { minutes: 0.005 })`);
    expect(output).toContain("sh took more than 0.005 minutes");
    await new Promise((resolve) => setTimeout(resolve, 2500));
    expect(existsSync(mark)).toBe(false);
  });

  it("gives signals back, so that a run which set itself up ends in order", async () => {
    const count = `() => ["SIGINT", "SIGTERM", "SIGHUP"].map((name) => process.listenerCount(name))`;
    const body = `(count) => {
      const release = m.endChildrenWithUs();
      const held = count();
      release();
      return [held, count()];
    }`;
    const { output } = await evaluate("run.mjs", `(${body})(${count})`);
    expect(JSON.parse(output)).toEqual([
      [1, 1, 1],
      [0, 0, 0],
    ]);
  });

  it("lets one set-up in at a time and takes over from a dead one", async () => {
    mkdirSync(join(cache, "lock"));
    const dead = spawn(process.execPath, ["-e", ""]);
    await new Promise((resolve) => dead.once("close", resolve));
    writeFileSync(join(cache, "lock", "pid"), String(dead.pid));
    const file = JSON.stringify(join(cache, "inside"));
    const body = `async () => {
      const fs = await import("node:fs");
      const alone = !fs.existsSync(${file});
      fs.writeFileSync(${file}, "");
      await new Promise((resolve) => setTimeout(resolve, 700));
      fs.rmSync(${file});
      return alone;
    }`;
    const both = await Promise.all([1, 2].map(() => evaluate("lock.mjs", `m.withLock(${body}, () => {})`)));
    expect(both.map(({ output }) => JSON.parse(output))).toEqual([true, true]);
    expect(existsSync(join(cache, "lock"))).toBe(false);
  });

  it("reports tools and caches, and removes only its own", async () => {
    mkdirSync(join(cache, "addon-0123"));
    writeFileSync(join(cache, "addon-0123", "molt_native.node"), "12345");
    writeFileSync(join(cache, "mine.txt"), "");
    const report = JSON.parse((await evaluate("setup.mjs", "m.doctorReport()", { MOLT_LIBTORCH: libtorch })).output);
    expect(report.tools.map((tool: { name: string }) => tool.name)).toEqual([
      "Node.js",
      "npm",
      "Python",
      "C++20 compiler",
    ]);
    expect(report.torch.path).toBe(libtorch);
    expect(report.addon.present).toBe(false);
    expect(report.cache.entries[0]).toEqual({ path: join(cache, "addon-0123"), bytes: 5 });
    expect((await setUp(["--remove"])).code).toBe(0);
    expect(readdirSync(cache)).toEqual(["mine.txt"]);
  });
});

describe("tool versions", () => {
  it("compares numbers, not text", async () => {
    const cases: [string, string, boolean][] = [
      ["20.18.1", "20.18.1", true],
      ["20.9.0", "20.18.1", false],
      ["22.0.0", "20.18.1", true],
      ["3.9.18", "3.10", false],
      ["3.25", "3.18", true],
      ["3.18.0-rc1", "3.18", true],
    ];
    const calls = cases.map(([have, need]) => `m.atLeast("${have}", "${need}")`).join(", ");
    expect(JSON.parse((await evaluate("tools.mjs", `[${calls}]`)).output)).toEqual(cases.map(([, , want]) => want));
  });
});

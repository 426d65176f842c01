import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";

const cli = fileURLToPath(new URL("../dist/cli.js", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "molt-cli-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** Exit code and output of the built command line, started in an empty folder. */
function run(...words: string[]): { code: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [cli, ...words], { cwd: folder, encoding: "utf8" });
  return { code: status, out: stdout, err: stderr };
}

const verbs = [
  "init",
  "check",
  "import",
  "run",
  "sft",
  "eval",
  "resume",
  "fork",
  "stop",
  "export",
  "runs",
  "watch",
  "logs",
  "inspect",
  "report",
  "setup",
  "doctor",
  "context",
  "serve",
];

test("help lists every verb but the hidden one, and the version is the package's", () => {
  const { code, out } = run("--help");
  expect(code).toBe(0);
  for (const verb of verbs) expect(out).toMatch(new RegExp(`^  ${verb} `, "m"));
  expect(out).not.toMatch(/^ {2}rank/m);
  expect(run("--version")).toEqual({ code: 0, out: "0.1.0\n", err: "" });
  expect(run()).toMatchObject({ code: 2, out, err: "" });
  for (const verb of verbs) expect(run(verb, "--help"), verb).toMatchObject({ code: 0, err: "" });
});

test("what the command line does not know is one plain line with a suggestion, and exit code 2", () => {
  expect(run("rnu")).toEqual({ code: 2, out: "", err: "error unknown command 'rnu': did you mean 'run'?\n" });
  expect(run("doctor", "--jsn").err).toBe("error unknown option '--jsn': did you mean '--json'?\n");
  expect(run("run").err).toBe("error run needs a <recipe>: none is given\n");
  expect(run("run", "a.yaml", "b.yaml").err).toBe("error run takes one <recipe>: a.yaml b.yaml are given\n");
  expect(run("export").err).toMatch(/^error missing required argument 'run'\n/);
  expect(run("serve", "--model", "m", "--port", "x").err).toContain("it must be an integer of at least 0");
});

test("a wrong recipe: file, line and column of all that is wrong, before anything starts", () => {
  writeFileSync(join(folder, "r.yaml"), "trian: {}\nrun: { steps: x }\nactor: { model_name_or_path: m }\n");
  for (const verb of ["check", "run"]) {
    const { code, err } = run(verb, "r.yaml", "--rollout.top_p", "0.5");
    expect(code).toBe(2);
    expect(err).toContain("error r.yaml:1:1 unknown key 'trian': did you mean 'train'?\n");
    expect(err).toContain("\nr.yaml:2:15 run.steps must be an integer of at least 1 or null, not 'x'\n");
    expect(err).toContain("\n--rollout.top_p must be 1, not 0.5");
  }
});

test("a misspelt key gives exactly what docs/index.md shows", () => {
  const root = fileURLToPath(new URL("../../", import.meta.url));
  const shown = /^error recipes.*temprature.*\n/m.exec(readFileSync(join(root, "docs/index.md"), "utf8"));
  cpSync(join(root, "recipes"), join(folder, "recipes"), { recursive: true });
  const recipe = join(folder, "recipes/quickstart.yaml");
  writeFileSync(recipe, readFileSync(recipe, "utf8").replace("temperature:", "temprature:"));
  expect(run("check", "recipes/quickstart.yaml")).toEqual({ code: 2, out: "", err: shown?.[0] });
});

test("--json gives the same as one object on standard output", () => {
  const { code, out, err } = run("run", "absent.yaml", "--json");
  expect([code, err]).toEqual([2, ""]);
  expect(JSON.parse(out)).toEqual({
    error: {
      message: "there is no such recipe",
      position: { file: "absent.yaml" },
      fix: "name a recipe's YAML file",
      exitCode: 2,
    },
  });
  const wrong = JSON.parse(run("check", "r.yaml", "--json").out);
  expect(wrong).toMatchObject({ path: "r.yaml", ok: false });
  expect(wrong.problems[0]).toMatchObject({
    code: "unknown-key",
    severity: "error",
    range: { start: { line: 0, character: 0 }, end: { line: 0, character: 5 } },
    fix: { newText: "train" },
  });
});

test("doctor reports in JSON whether the addon loads", () => {
  const { code, out } = run("doctor", "--json");
  const report = JSON.parse(out);
  expect(report.tools.map(({ name }: { name: string }) => name)).toContain("Node.js");
  expect(code).toBe(report.addon.loads ? 0 : 1);
  expect(report.addon.detail).not.toBe("");
});

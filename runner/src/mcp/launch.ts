/** What a server that may launch offers beside: it acts as the verbs do, in processes of their own. */
import { execFile, spawn } from "node:child_process";
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join, relative } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { planFile } from "../commands/plan.ts";
import { deadlineMs } from "../deadline.ts";
import { RunnerError, usageError } from "../errors.ts";
import { filesBelow, sha256 } from "../files.ts";
import { cliPath } from "../launchers/child.ts";
import { shorten } from "../lists.ts";
import { type CheckedRecipe, checkRecipe } from "../recipe/check.ts";
import { displayPath, formatDiagnostic } from "../recipe/diagnostic.ts";
import { type Recipe, recipeKeys, valueAt } from "../recipe/schema.ts";
import { listRuns, ownerOf } from "../telemetry/find-run.ts";
import { inside, isInside, pathsIn, recipeArgument, runArgument, untrusted } from "./guard.ts";
import { type Answer, recipeInput, runInput, type Tool, tool } from "./tools.ts";

/** Seconds. Clients wait a minute for an answer. */
const patience = 45;

/** What `start` has shown and not started yet, by the hash that confirms it: digests of all values and files. */
const planned = new Map<string, Map<string, string>>();

export const launchTools: Record<string, Tool> = {
  scaffold: tool(
    "Writes an estimator or a loss with its contract test, named in recipe.yaml or the registry; or an agent's folder.",
    {
      kind: z.enum(["estimator", "loss", "agent"]),
      name: z.string().describe("Small letters, digits and _; of an agent: its folder."),
    },
    async ({ kind, name }) => {
      const registry = (room: string) => `runner/src/algorithms/${room}/registry.ts`;
      for (const path of ["recipe.yaml", registry("advantages"), registry("losses")]) inside(path);
      const words = kind === "agent" ? [`./${relative(process.cwd(), inside(name))}`] : [kind, name];
      const { code, output } = await execute([cliPath(), "init", "--", ...words]);
      if (code !== 0) throw new RunnerError(output.replace(/^error /, ""));
      return [{ said: output.split("\n") }, output];
    },
  ),
  run_tests: tool(
    "Executes a test file of the workspace, such as the contract test that scaffold wrote.",
    { file: z.string().regex(/\.test\.(mjs|ts)$/, "must end in .test.mjs or .test.ts") },
    async ({ file }) => {
      const path = inside(file);
      // A checkout of the runner has its tests in TypeScript, for a test runner of its own.
      const vitest = () => join(createRequire(path).resolve("vitest/package.json"), "../vitest.mjs");
      // In one process each, so that nothing outlives its end.
      const words = file.endsWith(".ts") ? [vitest(), "run", "--pool=threads", path] : [path];
      const { code, output } = await execute(words);
      const said = untrusted(output.slice(-20_000), "what the test printed");
      return [{ passed: code === 0, code, output: said }, `${file} ${code === 0 ? "passed" : "failed"}\n${said}`];
    },
  ),
  start: tool(
    "Starts a run in two calls. Without `confirm`: a recipe's plan, and a hash of its values and files. With that " +
      "hash: starts exactly this, detached; refused if anything changed since.",
    {
      ...recipeInput,
      verb: z.enum(["run", "sft"]).optional().describe("Where not given, what the recipe is made for."),
      confirm: z.string().optional().describe("The hash that the plan named."),
    },
    async ({ verb, confirm, ...input }) => {
      const { path, flags, words: given } = recipeArgument(input);
      const checked = await checkRecipe(path, { flags, verb, mode: "launch" });
      inside(checked.recipe.run.dir);
      const parts = digests(checked);
      const words = [checked.verb, ...given];
      if (confirm !== undefined) {
        requirePlanned(confirm, parts);
        return launch(words, checked.recipe.run);
      }
      const hash = sha256(JSON.stringify([...parts])).slice(0, 16);
      planned.set(hash, parts);
      const { plan, problems, table } = planFile(path, flags);
      const away = pathsIn(checked.recipe).filter(({ path }) => !isInside(path));
      const said = new Set([...checked.problems, ...problems].map(formatDiagnostic));
      for (const { key, path } of away) said.add(`outside of ${process.cwd()}: ${key} ${path}`);
      const next = `nothing has started: to start \`${words.join(" ")}\`, call again with confirm "${hash}"`;
      const data = { confirm: hash, command: words, arithmetic: checked.arithmetic, plan, problems: [...said] };
      return [data, [checked.arithmetic.line, table, ...said, next].join("\n")];
    },
  ),
  stop: tool(
    "Ends a run in order: it finishes and saves the step at hand.",
    { ...runInput, now: z.boolean().default(false).describe("Abandon the step at hand; a checkpoint stays.") },
    async ({ run, now }) => {
      const words = ["stop", runArgument(run), "--json", "--timeout", `${patience}`, ...(now ? ["--now"] : [])];
      const { output } = await execute([cliPath(), ...words]);
      const data = JSON.parse(output.split("\n")[0]!); // Node's warnings may follow
      if (data.error) throw new RunnerError(data.error.message, data.error);
      const how = data.stopped ? "was stopped" : "was not at work";
      return [data, `run ${data.run} ${how}: ${data.state}, step ${data.step}`];
    },
  ),
};

const ended = new AbortController();
process.once("exit", () => ended.abort());

/** Node to its end; what takes longer, or longer than this process, is killed, and has no code. */
function execute(words: string[]): Promise<{ code: number | null; output: string }> {
  return new Promise((resolve) => {
    const timeout = deadlineMs(patience + 5);
    const options = { timeout, maxBuffer: 2 ** 26, signal: ended.signal, killSignal: "SIGKILL" } as const;
    const child = execFile(process.execPath, words, options, (_, output, errors) => {
      resolve({ code: child.exitCode, output: `${output}${errors}`.trim() });
    });
  });
}

const isCode = /\.([cm]?[jt]s|py|sh)$/;

/** Of each value of a recipe, each file and folder that it names, and all code of the workspace that these may load. */
function digests({ recipe, verb }: CheckedRecipe): Map<string, string> {
  const parts = new Map([["verb", verb as string]]);
  for (const key of recipeKeys.keys()) parts.set(key, sha256(JSON.stringify(valueAt(recipe, key))));
  const read = pathsIn(recipe).filter(
    ({ key, path }) => recipeKeys.get(key)!.path !== "working directory" && existsSync(path),
  );
  const named = read.flatMap(({ path }) => [path, ...filesBelow(path, /./, 1)]);
  for (const name of [...filesBelow(process.cwd(), isCode, 8), ...named]) {
    const { size, mtimeMs } = statSync(name);
    parts.set(displayPath(name), isCode.test(name) ? sha256(readFileSync(name)) : `${size} ${mtimeMs}`);
  }
  return parts;
}

/** A plan that was shown here, and is what would start now; once for each. */
function requirePlanned(confirm: string, parts: Map<string, string>): void {
  const before = planned.get(confirm);
  const fix = "call start without confirm, and look at the plan";
  if (!before) throw usageError(`no plan '${confirm}' was shown here that has not started yet`, { fix });
  const changed = [...new Map([...before, ...parts]).keys()].filter((name) => before.get(name) !== parts.get(name));
  if (changed.length > 0) throw usageError(`not started: changed since the plan: ${shorten(changed, 9)}`, { fix });
  planned.delete(confirm);
}

/** It goes on without this process. */
async function launch(words: string[], { dir, name }: Recipe["run"]): Promise<Answer> {
  mkdirSync(dir, { recursive: true });
  const log = join(dir, `${name}-${Date.now()}.log`);
  const file = openSync(log, "wx");
  const child = spawn(process.execPath, [cliPath(), ...words], { detached: true, stdio: ["ignore", file, file] });
  closeSync(file);
  child.unref();
  const data = { process: child.pid, log: displayPath(log), run: null };
  for (const end = Date.now() + deadlineMs(patience); Date.now() < end; await sleep(200)) {
    const run = listRuns(dir).find((one) => ownerOf(one.path) === child.pid);
    const text = `has started in process ${child.pid}; run_status and metrics show it, stop ends it`;
    if (run) return [{ ...data, run: run.id, directory: displayPath(run.path) }, `run ${run.id} ${text}`];
    if (child.exitCode === null && child.signalCode === null) continue;
    const said = untrusted(readFileSync(log, "utf8").slice(-4000), `the end of ${data.log}`);
    throw new RunnerError(`the run ended before it began\n${said}`);
  }
  return [data, `process ${child.pid} still sets up, as ${data.log} says; runs will list its run`];
}

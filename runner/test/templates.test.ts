import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { checkRecipe } from "../src/recipe/check.ts";
import { files, read, root } from "./tree.ts";

const template = "runner/templates/agent";
const linesOf = (path: string) => read(path).trimEnd().split("\n");

it("the template's recipes are right", async () => {
  const verbs = ["warmup", "recipe"].map(async (name) => {
    const { verb, problems } = await checkRecipe(join(root, template, `${name}.yaml`), { mode: "check" });
    return { verb, severities: problems.map(({ severity }) => severity) };
  });
  expect(await Promise.all(verbs)).toEqual([
    { verb: "sft", severities: [] },
    { verb: "run", severities: ["info"] }, // the model that warmup.yaml will export
  ]);
});

it("its model is the quickstart's, its data the first rows of the quickstart's", () => {
  const model = files.filter((path) => path.startsWith("recipes/quickstart/model/"));
  expect(model.length).toBeGreaterThan(2);
  for (const path of model) expect(read(path.replace("recipes/quickstart", template)), path).toBe(read(path));
  for (const [name, original] of Object.entries({ train: "prompts", heldout: "heldout", warmup: "warmup" })) {
    const rows = linesOf(`${template}/data/${name}.jsonl`);
    expect(rows.length).toBeGreaterThan(90);
    expect(rows).toEqual(linesOf(`recipes/quickstart/${original}.jsonl`).slice(0, rows.length));
  }
});

it("AGENTS.md names every file, and only files that are there or that runs make", () => {
  const text = read(`${template}/AGENTS.md`);
  const paths = files.filter((path) => path.startsWith(`${template}/`)).map((path) => path.slice(template.length + 1));
  const named = [...text.matchAll(/`([\w.-]+(?:\/|\.\w+))`/g)].map((match) => match[1]!);
  const made = ["runs/", "summary.json", "events.ndjson", "curve.svg", "export/"];
  const exists = (name: string) =>
    paths.some(
      (path) => path === name || path.split("/").some((_, i, parts) => name === `${parts[i]}/` || name === parts[i]),
    );
  expect(named.filter((name) => !made.includes(name) && !exists(name))).toEqual([]);
  for (const name of ["agent.ts", "agent.test.mjs", "recipe.yaml", "warmup.yaml", "data/", "model/"]) {
    expect(named).toContain(name);
  }
});

it("its debugger stops in agents: bundles lie outside the folder, and no deadline runs out meanwhile", () => {
  const text = readFileSync(join(root, template, ".vscode/launch.json"), "utf8").replaceAll(/^\s*\/\/.*$/gm, "");
  const [run] = JSON.parse(text).configurations;
  expect(run).toMatchObject({ type: "node", runtimeArgs: ["molt-runner", "run", "recipe.yaml"] });
  expect(run.resolveSourceMapLocations).toBeNull();
  expect(Number(run.env.MOLT_DEADLINE_SCALE)).toBeGreaterThan(1);
});

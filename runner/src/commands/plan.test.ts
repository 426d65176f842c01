import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, it, vi } from "vitest";
import { checkRecipe } from "../recipe/check.ts";
import { planCommand } from "./plan.ts";

const log = vi.spyOn(console, "log").mockImplementation(() => {});
afterEach(() => log.mockClear());
const printed = () => log.mock.calls.map(([text]) => String(text)).join("\n");

const root = new URL("../../../", import.meta.url).pathname;
const recipesOf = (folder: string) =>
  readdirSync(join(root, folder)).flatMap((name) => (name.endsWith(".yaml") ? [`${folder}/${name}`] : []));
const recipes = ["recipes", "recipes/quickstart", "recipes/pointers"].flatMap(recipesOf);
const plan = (recipe: string, flags: Record<string, string> = {}, json = false) =>
  planCommand(join(root, recipe), { json, flags });

describe("plan", () => {
  // case E5
  it.each(recipes)("%s: plans without its model's weights, on 100 columns", async (recipe) => {
    expect(await plan(recipe)).toBe(0);
    const lines = printed().split("\n");
    expect(lines.filter((line) => line.length > 100)).toEqual([]);
    expect(lines).toContain("model");
    expect(printed()).toMatch(/^ {2}parameters +(87K|49\.9K|135M|236K, 88\.1K active)$/m);
    expect(printed()).not.toMatch(/NaN|undefined|Infinity/);
  });

  // case E2
  it("says the arithmetic, the same in JSON", async () => {
    const arithmetic = "32 prompts x 8 samples = 256 rows a batch, 200 batches x 1 update = 200 optimizer steps";
    await plan("recipes/quickstart.yaml");
    expect(printed().replace(/\s+/g, " ")).toContain(`arithmetic ${arithmetic}, microbatches of at most 16384 tokens`);
    log.mockClear();
    await plan("recipes/quickstart.yaml", {}, true);
    const { ok, arithmetic: said, layout, trainer, time, problems } = JSON.parse(printed());
    expect({ ok, rows: said.rows, ranks: layout.ranks, problems }).toEqual({
      ok: true,
      rows: 256,
      ranks: 1,
      problems: [],
    });
    // Weights, gradients and two moments of 87,040 parameters, float32.
    expect(trainer.parts).toMatchObject({ weights: 348160, gradients: 348160, optimizer: 696320 });
    expect(time.step).toBeGreaterThan(0);
  });

  it("recipes/gpu keep every rule, their warnings too, and come to what docs/reproduce.md says", async () => {
    const listed = readFileSync(join(root, "docs/reproduce.md"), "utf8").matchAll(
      /^\| `(recipes\/gpu\/\S+\.yaml)`.*\| (\d+)[^|]* \|$/gm,
    );
    const said = Object.fromEntries([...listed].map(([, path, seconds]) => [path, Number(seconds)]));
    const planned: Record<string, number> = {};
    for (const path of recipesOf("recipes/gpu")) {
      log.mockClear();
      expect(await plan(path, {}, true), path).toBe(0);
      const { problems, time } = JSON.parse(printed());
      expect(problems, path).toEqual([]);
      planned[path] = Math.round(time.step);
    }
    expect(planned).toEqual(said);
    expect(Object.keys(planned)).toHaveLength(7);
  });

  const large = { "actor.model_name_or_path": "/none/Qwen3-30B-A3B", "run.device": "H100", "fsdp.param_dtype": "bf16" };

  it("refuses what the device cannot hold, with the smallest change, after the plan", async () => {
    const refusal = /the trainer needs .* on each H100 .*: the smallest change that fits is /;
    await expect(plan("recipes/quickstart.yaml", large)).rejects.toThrow(refusal);
    expect(printed()).toMatch(/^ {2}total +\d+ GB of 79 GB$/m);
    log.mockClear();
    expect(await plan("recipes/quickstart.yaml", large, true)).toBe(2);
    const { ok, problems } = JSON.parse(printed());
    expect(ok).toBe(false);
    expect(problems[0]).toMatchObject({ severity: "error", code: "guardrail", rule: "memory" });
  });

  it("refuses a recipe that is wrong before it plans, and a model that nobody knows", async () => {
    await expect(plan("recipes/quickstart.yaml", { "train.max_tokens_per_device": "8" })).rejects.toThrow(
      /data.max_len/,
    );
    const unknown = { "actor.model_name_or_path": "/none/other" };
    await expect(plan("recipes/quickstart.yaml", unknown)).rejects.toThrow(/no known model's/);
    expect(printed()).toBe("");
  });
});

it("check shows what the plan finds, too", async () => {
  const flags = { "actor.model_name_or_path": join(root, "recipes/quickstart/model"), "engine.kind": "vllm" };
  const options = { flags: { ...flags, "vllm.tensor_parallel_size": "3" }, mode: "check" } as const;
  const wrong = /vllm\.tensor_parallel_size \(3\) must divide the model's 4 attention heads: try 2/;
  await expect(checkRecipe(join(root, "recipes/quickstart.yaml"), options)).rejects.toThrow(wrong);
});

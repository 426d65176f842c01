import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import type { MarkupContent } from "vscode-languageserver";
import { CodeFolder, CodeIndex } from "../../runner/src/code/index.ts";
import { recipeKeys } from "../../runner/src/recipe/index.ts";
import { explain } from "../src/service/explain.ts";
import { codeLenses, inlayHints } from "../src/service/hints.ts";
import { hover } from "../src/service/hover.ts";
import { plan, planFacts } from "../src/service/plan.ts";
import { resolved } from "../src/service/resolved.ts";
import { recipeOf } from "../src/service/workspace.ts";
import { documentAt, marked, path, sound, source, workspaceOf } from "./golden.ts";

/** A decoder that can be counted by hand. */
const configJson = JSON.stringify({
  model_type: "qwen3",
  hidden_size: 8,
  intermediate_size: 16,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 4,
  vocab_size: 32,
  tie_word_embeddings: true,
  max_position_embeddings: 4096,
});
const withModel = workspaceOf({ "model/config.json": configJson, "base.yaml": "rollout: { batch_size: 64 }\n" });

function text(recipe: string): string | undefined {
  const { document, position } = marked(recipe);
  return (hover(document, position, withModel)?.contents as MarkupContent | undefined)?.value;
}

describe("hover", () => {
  it("on a key: description, type, unit, value and its line, default, flag, plan, where the code reads it", () => {
    const shown = text(`${sound}rollout:\n  n_samples_per_prompt: 2\n  ba|tch_size: 4\n`)!;
    const { description } = recipeKeys.get("rollout.batch_size")!;
    expect(shown).toContain("**rollout.batch_size**: an integer of at least 1, in groups");
    expect(shown).toContain(description);
    expect(shown).toContain(`\`4\` (${path}:6:15; default \`128\`), flag \`--rollout.batch_size\``);
    expect(shown).toContain("[loop.ts:12](file:///runner/loop.ts#L12)");
    expect(shown).toMatch(/^- Plan: a step takes about [\d.e-]+ s/m);
  });

  it("names a parent's value where the recipe sets none", () => {
    const { document } = marked(`extends: base.yaml\n${sound}|`);
    expect(explain(document, "rollout.batch_size", withModel)).toMatchObject({ value: 64, default: 128 });
    expect(explain(document, "rollout.batch_size", withModel)!.provenance).toMatch(/base\.yaml:1:24$/);
    expect(explain(document, "rollout.top_p", withModel)).toMatchObject({ value: 1, provenance: "default" });
    expect(explain(document, "rollout.nosuch", withModel)).toBeUndefined();
  });

  it("on a value: the same, and for an estimator its function", () => {
    expect(text("algo: { advantage: { estimator: rl|oo } }\n")).toContain("Defined in [rloo.ts:5]");
    expect(text("rollout: { batch_size: 4| }\n")).toContain("**rollout.batch_size**");
  });

  it("on a section: its keys", () => {
    expect(text("al|go: { kl: { init_coef: 0 } }\n")).toMatch(/a section.*`algo\.kl\.init_coef`/s);
  });

  it("counts the model's parameters", () => {
    // Embedding 32 x 8; q 8 x 8, k and v 8 x 4 each, o 8 x 8; three 8 x 16; norms 8, 8, 4, 4 and at the end 8.
    const count = 32 * 8 + 64 + 2 * 32 + 64 + 3 * 128 + 32;
    const { plan: made } = plan(marked(`${sound}|`).document, withModel)!;
    expect(made!.model.parameters.total).toBe(count);
    expect(text(sound.replace("model:", "model:").replace("{ model_name", "{ mo|del_name"))).toContain(
      "Plan: 864 parameters",
    );
  });

  it.each(["ro|lout: 1\n", "# rol|lout\nrun: {}\n", "rollout: { batch_si|se: 4 }\n", "|\n"])(
    "shows what it can: %j",
    (it) => {
      expect(() => text(it)).not.toThrow();
      if (it.includes("sise") || it.startsWith("#")) expect(text(it)).toBeUndefined();
    },
  );
});

describe("inlay hints", () => {
  /** The text with its hints written into it. */
  function shown(recipe: string, workspace = withModel): string {
    const document = documentAt(path, recipe);
    const end = source(document).positionAt(recipe.length);
    const edits = inlayHints(document, { start: { line: 0, character: 0 }, end }, workspace)
      .map(({ position, label }) => ({ offset: source(document).offsetAt(position), label }))
      .sort((a, b) => b.offset - a.offset);
    return edits.reduce((all, { offset, label }) => `${all.slice(0, offset)} «${label}»${all.slice(offset)}`, recipe);
  }

  it("say what a batch comes to", () => {
    const recipe = (n: string) => `${sound}rollout:\n  batch_size: 4\n  n_samples_per_prompt: 3${n}\n`;
    expect(shown(recipe(""), workspaceOf())).toBe(recipe(" «= 12 rows a step»"));
    const alone = "rollout: { batch_size: 4 }\n";
    expect(shown(alone, workspaceOf())).toBe("rollout: { batch_size: 4 «= 32 rows a step» }\n");
    const sft = "data: { output_key: reply }\ntrain: { batch_size: 16 }\n";
    expect(shown(sft, workspaceOf())).toBe(sft.replace("16", "16 «= 16 rows a step»"));
  });

  it("say what the plan says, where there is one", () => {
    const hinted = shown(
      `${sound}engine: { max_num_seqs: 8 }\n`.replace("agent.ts", "agent.ts, max_tokens_per_device: 4096"),
    );
    expect(hinted).toMatch(/model_name_or_path: model «= [\d.]+ MB of [\d.]+ GB a training device»/);
    expect(hinted).toMatch(/max_num_seqs: 8 «= 8 sequences at once, [\d.]+ [kM]B of [\d.]+ GB an engine's device»/);
    expect(hinted).toMatch(/max_tokens_per_device: 4096 «= \d+ microbatch(es)? a step, of at most \d+ tokens»/);
  });

  it("are only made for the lines that are asked for", () => {
    const document = documentAt(path, `${sound}rollout: { batch_size: 4 }\n`);
    const range = { start: { line: 0, character: 0 }, end: { line: 2, character: 0 } };
    expect(inlayHints(document, range, workspaceOf())).toEqual([]);
  });
});

it("lenses stand above the first key and name the recipe's verb", () => {
  const lenses = (recipe: string) =>
    codeLenses(documentAt(path, recipe), withModel).map(({ range, command }) => [range.start.line, command!.title]);
  expect(lenses(`# Sorts.\n\n${sound}`)).toEqual([
    [2, "run"],
    [2, "plan"],
    [2, "check"],
  ]);
  expect(lenses("data: { output_key: reply }\n")[0]).toEqual([0, "sft"]);
  expect(codeLenses(documentAt("/project/compose.yaml", "services: {}\n"), withModel)).toEqual([]);
});

it("a resolved recipe has every value, and says where wrong ones were replaced", () => {
  const good = resolved(documentAt(path, `${sound}rollout: { batch_size: 4 }\n`), withModel)!;
  expect(good).toMatchObject({ verb: "run", hasErrors: false, recipe: { rollout: { batch_size: 4, top_p: 1 } } });
  expect(good.yaml).toContain(`batch_size: 4  # ${path}:4:`);
  const [start, end] = [23, 24].map((character) => ({ line: 3, character }));
  expect(good.places["rollout.batch_size"]).toEqual({ start, end });
  expect(good.places).not.toHaveProperty("rollout.top_p");
  expect(resolved(documentAt(path, `${sound}rollout: { batch_size: no }\n`), withModel)!.hasErrors).toBe(true);
});

it("what the environment holds is never shown", () => {
  process.env.MOLT_TEST_PLANTED = "planted";
  try {
    const document = documentAt(path, `${sound}eval: { dataset: "\${env:MOLT_TEST_PLANTED}.jsonl" }\n`);
    expect(recipeOf(document, withModel)!.recipe.eval.dataset).toContain("planted");
    const position = { line: 3, character: 10 };
    const shown = [
      resolved(document, withModel),
      explain(document, "eval.dataset", withModel),
      plan(document, withModel),
    ];
    expect(JSON.stringify([...shown, hover(document, position, withModel)])).not.toContain("planted");
    expect(JSON.stringify(shown)).toContain("MOLT_TEST_PLANTED");
  } finally {
    delete process.env.MOLT_TEST_PLANTED;
  }
});

it("a plan of a wrong recipe, or without a model, says why there is none", () => {
  expect(plan(documentAt(path, "rollout: { batch_size: no }\n"), withModel)).toMatchObject({ plan: null });
  const { plan: none, why } = plan(documentAt(path, sound), workspaceOf())!;
  expect([none, why]).toEqual([null, expect.stringContaining("config.json")]);
});

it("the plan's numbers are shown for the keys that the planner reads, and no others", () => {
  const sources = fileURLToPath(new URL("../../runner/src", import.meta.url));
  const code = new CodeIndex(new CodeFolder(sources).files());
  const isPlanned = (key: string) =>
    // Where processes are placed is a word of the plan, no number.
    !key.startsWith("launcher.") &&
    code
      .readersOf(key)
      .some(({ file }) => /[\\/]recipe[\\/](planner[\\/](?!findings|placement)\w+|arithmetic)\.ts$/.test(file));
  const { plan: made } = plan(documentAt(path, sound), withModel)!;
  const shown = [...recipeKeys.keys()].filter((key) => planFacts(made!).some(({ keys }) => keys.test(key)));
  expect(shown.sort()).toEqual([...recipeKeys.keys()].filter(isPlanned).sort());
});

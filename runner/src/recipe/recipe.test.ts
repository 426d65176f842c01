import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, relative, resolve } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { isRecipe } from "../../../lsp/src/service/documents.ts";
import { files, read, root } from "../../test/tree.ts";
import { CodeFolder, CodeIndex } from "../code/index.ts";
import { formatDiagnostic } from "./diagnostic.ts";
import { diagnose, loadRecipe, recipeJsonSchema, recipeKeys, recipeSections, resolvedYaml } from "./index.ts";
import { editDistance } from "./suggest.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-recipe-"));
afterAll(() => rmSync(folder, { recursive: true }));

const right = `actor: { model_name_or_path: model }
data: { prompt_dataset: a.jsonl }
train: { agent_path: agent.ts }
`;

function write(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

/** What is shown for a recipe's text, the file left out. */
function problems(text: string, environment = {}): string[] {
  const file = join(folder, "r.yaml");
  return diagnose(text, file, { environment }).map((found) => formatDiagnostic(found).replace(`${file}:`, ""));
}

function failure(path: string, flags: Record<string, string> = {}): string {
  try {
    loadRecipe(path, { flags, verb: "run" });
  } catch (error) {
    return (error as { format(): string }).format().replaceAll(`${folder}/`, "");
  }
  return "no error";
}

describe("each kind of diagnostic", () => {
  test.each([
    ["a misspelt key", `${right}trian: {}\n`, ["4:1 unknown key 'trian': did you mean 'train'?"]],
    [
      "a misspelt key in a section",
      `${right}algo:\n  advantage:\n    estimatr: grpo\n`,
      ["6:5 unknown key 'estimatr' in 'algo.advantage': did you mean 'estimator'?"],
    ],
    [
      "a key of another section",
      `${right}rollout: { lr: 1 }\n`,
      ["4:12 unknown key 'lr' in 'rollout': did you mean 'actor.adam.lr'?"],
    ],
    [
      "a dotted key",
      `${right}actor.adam.lr: 1e-3\n`,
      ["4:1 unknown key 'actor.adam.lr': did you mean actor: { adam: { lr: … } }?"],
    ],
    [
      "a dotted key in its section",
      `${right}rollout: {}\nalgo:\n  kl.init_coef: 0.1\n`,
      ["6:3 unknown key 'kl.init_coef' in 'algo': did you mean kl: { init_coef: … }?"],
    ],
    [
      "keys cut short, and spelt out",
      `${right}rollout: { n_samples: 4 }\nalgorithm: { kl: { init_coef: 1 } }\n`,
      [
        "4:12 unknown key 'n_samples' in 'rollout': did you mean 'n_samples_per_prompt'?",
        "5:1 unknown key 'algorithm': did you mean 'algo'?",
      ],
    ],
    [
      "what a shell would fill in",
      right.replace("model }", "~/m }").replace("a.jsonl", `["$DATA/a.jsonl", "\${HOME}/b"]`),
      [
        `1:30 actor.model_name_or_path has '~/m', which no shell fills in here: write '\${env:HOME}/m'`,
        `2:25 data.prompt_dataset has '$DATA/a.jsonl', which no shell fills in here: write '\${env:DATA}/a.jsonl'`,
      ],
    ],
    ["a path with a dollar of its own", right.replace("a.jsonl", "/data/a$b/~~.jsonl"), []],
    [
      "a name that would leave run.dir",
      `${right}run: { name: .. }\n`,
      ["4:14 run.name must be text matching ^\\w[\\w.-]*$, not '..'"],
    ],
    [
      "a reference that is not quoted among braces",
      `${right}run: { name: \${env:X} }\n`,
      ["4:15 a text with braces in it, as a reference to the environment has, goes in quotes here"],
    ],
    [
      "a key like none",
      `${right}ref: { xyzzy: 1 }\n`,
      ["4:8 unknown key 'xyzzy' in 'ref': the keys here are model_name_or_path"],
    ],
    [
      "a wrong type",
      `${right}rollout: { batch_size: many }\n`,
      ["4:24 rollout.batch_size must be an integer of at least 1, not 'many'"],
    ],
    [
      "a wrong choice",
      `${right}algo: { advantage: { estimator: gpro } }\n`,
      [
        "4:33 algo.advantage.estimator must be one of reinforce_baseline, reinforce, grpo, dr_grpo, rloo, " +
          "flash_reinforce, opo, maxrl, pass_k, turn_credit, gae, on_policy_distill or a path, " +
          "not 'gpro': did you mean 'grpo'?",
      ],
    ],
    [
      "a value out of range",
      `${right}run: { steps: 0 }\n`,
      ["4:15 run.steps must be an integer of at least 1 or null, not 0"],
    ],
    [
      "a number that YAML reads as text",
      `${right}run: { steps: 1_000 }\n`,
      ["4:15 run.steps must be an integer of at least 1 or null, not '1_000'"],
    ],
    [
      "a list of the wrong length",
      `${right}reward: { clip_range: [1] }\n`,
      ["4:23 reward.clip_range must be a list of 2: a number, a number, not [ 1 ]"],
    ],
    [
      "an empty list",
      right.replace("a.jsonl", "[]"),
      ["2:25 data.prompt_dataset must be a path or a list of paths or null, not []"],
    ],
    ["no value", `${right}run: { seed: }\n`, ["4:14 run.seed must be an integer of at least 0, not null"]],
    ["no number", `${right}run: { seed: .nan }\n`, ["4:14 run.seed must be an integer of at least 0, not NaN"]],
    ["a duplicate key", `${right}run: { seed: 1, seed: 2 }\n`, ["4:17 duplicate key 'seed': it is already set above"]],
    ["a duplicate section", `${right}data: {}\n`, ["4:1 duplicate key 'data': it is already set above"]],
    ["a tab", `actor:\n\tmodel_name_or_path: m\n`, ["2:1 YAML is indented with spaces, not tabs"]],
    [
      "a key too deep",
      "run:\n  name: a\n    seed: 1\n",
      [expect.stringMatching(/^2:9 a ':' too many: what follows is in/)],
    ],
    ["a key not deep enough", "run:\n    seed: 1\n  name: a\n", ["3:1 this is not indented as the keys beside it"]],
    ["a broken line", `actor: 'x\n`, ["2:1 Missing closing 'quote"]],
    [
      "a section that is a value",
      `${right}run: 3\n`,
      ["4:6 'run' is a section: its keys go below it, indented, as 'key: value'"],
    ],
    ["a recipe that is a list", "- actor\n", ["1:1 a recipe is a map of sections"]],
    [
      "an unknown alias",
      `${right}run: { seed: *s }\n`,
      ["4:14 Unresolved alias (the anchor must be set before the alias): s"],
    ],
    [
      "a variable that is not set",
      `${right}run: { name: "\${env:NO}" }\n`,
      ["4:14 warning: run.name takes 'NO' from the environment, where it is not set"],
    ],
    [
      "two mistakes",
      `${right}run: { sed: 1, steps: x }\n`,
      [
        "4:8 unknown key 'sed' in 'run': did you mean 'seed'?",
        "4:23 run.steps must be an integer of at least 1 or null, not 'x'",
      ],
    ],
  ])("%s", (_, text, expected) => {
    expect(problems(text)).toEqual(expected);
  });

  test("a missing key is shown at its section, or at the start", () => {
    const missing = "actor.model_name_or_path is missing: Hugging Face folder of the policy";
    expect(problems("data: { prompt_dataset: a }\ntrain: { agent_path: a }\nactor: { init: random }\n")).toEqual([
      expect.stringContaining(`3:1 ${missing}`),
    ]);
    const own = problems("");
    expect(own[0]).toContain(`1:1 ${missing}`);
    expect(own).toHaveLength(3);
  });

  test("a suggestion inside the section comes with its edit", () => {
    const [found] = diagnose(`${right}trian: {}\n`, "r.yaml");
    const range = { start: { line: 3, character: 0 }, end: { line: 3, character: 5 } };
    expect(found).toMatchObject({ code: "unknown-key", severity: "error", range });
    expect(found!.fix).toEqual({ title: "Change to 'train'", range, newText: "train" });
  });

  test("no text makes it throw, however broken", () => {
    const pieces = [
      ...right.split(/\b/),
      "&a",
      "*a",
      "<<",
      "? [1]",
      "{",
      "]",
      '"',
      "'",
      "\t",
      "\n",
      "- ",
      "!!map",
      "|",
      "#",
    ];
    fc.assert(
      fc.property(fc.array(fc.oneof(fc.constantFrom(...pieces), fc.string()), { maxLength: 30 }), (parts) => {
        for (const text of [parts.join(""), right + parts.join(" ")]) {
          for (const { message, range } of diagnose(text, "r.yaml", { readFile: () => undefined })) {
            expect(message).not.toBe("");
            expect(range.start.line).toBeGreaterThanOrEqual(0);
          }
        }
      }),
      { numRuns: 500 },
    );
    expect(problems(`${right}reward: { clip_range: &b [*b, 1] }\n`)).toHaveLength(1);
  });

  test("a right recipe has none, CRLF and a byte order mark included", () => {
    expect(problems(right)).toEqual([]);
    expect(problems(`\uFEFF${right.replaceAll("\n", "\r\n")}`)).toEqual([]);
  });
});

describe("invariant 7, case E4: every misspelt key is an error with a suggestion", () => {
  const names = [...recipeSections.keys(), ...recipeKeys.keys()];
  const edit = fc.record({
    key: fc.constantFrom(...names),
    at: fc.nat(30),
    how: fc.constantFrom("drop", "double", "swap", "replace"),
    letter: fc.constantFrom(..."abcdefghijklmnopqrstuvwxyz_"),
  });

  function misspell(name: string, { at, how, letter }: { at: number; how: string; letter: string }): string {
    const i = at % name.length;
    const [before, here, after] = [name.slice(0, i), name[i]!, name.slice(i + 1)];
    if (how === "drop") return before + after;
    if (how === "double") return before + here + here + after;
    if (how === "replace") return before + letter + after;
    return before + after.slice(0, 1) + here + after.slice(1);
  }

  const slip = edit.map((choice) => {
    const parents = choice.key.split(".");
    const name = parents.pop()!;
    return { key: choice.key, parents, name, typed: misspell(name, choice) };
  });
  const siblings = (parents: string[]) => {
    const prefix = parents.map((parent) => `${parent}.`).join("");
    const below = names.filter((key) => key.startsWith(prefix)).map((key) => key.slice(prefix.length));
    return below.filter((name) => !name.includes("."));
  };

  test("in a file, at its line and column", () => {
    fc.assert(
      fc.property(slip, fc.nat(3), ({ parents, name, typed }, blankLines) => {
        fc.pre(typed !== "" && ![...siblings(parents), "extends"].includes(typed));
        const lines = [...parents, typed].map((part, depth) => `${"  ".repeat(depth)}${part}:`);
        const found = diagnose(`${"\n".repeat(blankLines)}${lines.join("\n")} 1\n`, "r.yaml");
        const unknown = found.filter(({ code }) => code === "unknown-key");
        expect(unknown).toHaveLength(1);
        const start = { line: blankLines + parents.length, character: 2 * parents.length };
        expect(unknown[0]!.range).toEqual({ start, end: { ...start, character: start.character + typed.length } });
        expect(unknown[0]!.message).toMatch(/^unknown key '.*did you mean /);
        // The suggestion is the key itself, or one that is no farther from what was typed.
        const meant = /did you mean '(?:.*\.)?(.+)'\?$/.exec(unknown[0]!.message)![1]!;
        expect(editDistance(typed, meant)).toBeLessThanOrEqual(editDistance(typed, name));
      }),
      { numRuns: 400 },
    );
  });

  test("as a flag", async () => {
    const { splitArguments } = await import("./flags.ts");
    fc.assert(
      fc.property(slip, ({ key, parents, typed }) => {
        const flag = `--${[...parents, typed].join(".")}`;
        fc.pre(recipeKeys.has(key) && !recipeKeys.has(flag.slice(2)) && typed !== "");
        expect(() => splitArguments(["r.yaml", flag, "1"])).toThrow(/^unknown flag '.*': did you mean '--.+'\?$/);
      }),
    );
  });
});

describe("what a recipe resolves to", () => {
  test("defaults, the name from the file, paths from its folder, provenance", () => {
    const path = write("sort.yaml", `${right}eval:\n  steps: 5\n`);
    const { recipe, provenance, verb } = loadRecipe(path, { flags: { "run.steps": "7" } });
    expect(verb).toBe("run");
    const others = { seed: 42, deterministic: false, max_restarts: 5, device: "auto" };
    expect(recipe.run).toEqual({ name: "sort", dir: resolve("runs"), steps: 7, ...others });
    expect(recipe.actor.model_name_or_path).toBe(join(folder, "model"));
    expect(recipe.actor.adam).toEqual({ lr: 1e-6, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0 });
    expect(provenance.get("eval.steps")).toMatchObject({
      place: { file: path, range: { start: { line: 4, character: 9 } } },
    });
    expect(provenance.get("run.steps")).toMatchObject({ place: { file: "--run.steps" } });
    expect(provenance.get("run.seed")).toEqual({});
    expect([...provenance.keys()]).toEqual([...recipeKeys.keys()]);
  });

  test("a recipe with a reply column and no agent is for sft", () => {
    const path = write("warm.yaml", "actor: { model_name_or_path: m }\ndata: { prompt_dataset: a, output_key: b }\n");
    expect(loadRecipe(path).verb).toBe("sft");
    expect(failure(path)).toContain("train.agent_path is missing: run needs");
  });

  test("extends: the child's keys win, a parent's paths are the parent's", () => {
    write("parent.yaml", `${right}run: { seed: 1, steps: 9 }\n`);
    const child = write("child.yaml", "extends: parent.yaml\nrun:\n  seed: 2\n");
    const { recipe, provenance } = loadRecipe(child);
    expect(recipe.run).toMatchObject({ name: "child", seed: 2, steps: 9 });
    expect(recipe.data.prompt_dataset).toBe(join(folder, "a.jsonl"));
    expect(provenance.get("run.steps")!.place).toMatchObject({
      file: join(folder, "parent.yaml"),
      range: { start: { line: 3, character: 23 } },
    });
  });

  test("extends: circles, absent parents and lists are refused; a parent's faults show at extends", () => {
    write("a.yaml", "extends: b.yaml\n");
    write("b.yaml", "extends: a.yaml\n");
    expect(failure(join(folder, "a.yaml"))).toContain(
      "b.yaml:1:10 extends goes round in a circle: a.yaml → b.yaml → a.yaml",
    );
    expect(problems(`extends: none.yaml\n${right}`)).toEqual([`1:10 there is no recipe at ${folder}/none.yaml`]);
    // What is missing may be in that parent.
    expect(problems("extends: none.yaml\n")).toEqual([`1:10 there is no recipe at ${folder}/none.yaml`]);
    expect(problems(`extends: [a]\n${right}`)).toEqual(["1:10 extends must be the path of one recipe"]);
    write("faulty.yaml", "run: { sed: 1 }\n");
    expect(problems(`extends: faulty.yaml\n${right}`)).toEqual([
      `1:10 ${folder}/faulty.yaml:1:8 unknown key 'sed' in 'run': did you mean 'seed'?`,
    ]);
  });

  test("the environment fills values of any type, and stays out of the resolved recipe", () => {
    process.env.MOLT_TEST_LR = "1e-3";
    process.env.MOLT_TEST_ROOT = "/models";
    const path = write(
      "env.yaml",
      `actor:
  model_name_or_path: \${env:MOLT_TEST_ROOT}/tiny
  adam: { lr: "\${env:MOLT_TEST_LR}" }
ref: { model_name_or_path: "sub/\${env:MOLT_TEST_LR}" }
data: { prompt_dataset: a.jsonl }
train: { agent_path: agent.ts }
`,
    );
    const { recipe, provenance } = loadRecipe(path);
    expect(recipe.actor).toMatchObject({ model_name_or_path: "/models/tiny", adam: { lr: 1e-3 } });
    expect(recipe.ref.model_name_or_path).toBe(join(folder, "sub/1e-3"));
    const text = resolvedYaml(recipe, provenance);
    expect(text).not.toContain("/models");
    expect(problems(`${right}run: { steps: "\${env:EMPTY}" }\n`, { EMPTY: "" })).toEqual([
      `4:15 run.steps must be an integer of at least 1 or null, not '\${env:EMPTY}'`,
    ]);
    expect(loadRecipe(write("env-again.yaml", text)).recipe).toEqual(recipe);
  });

  test("a list of paths: each from its recipe's folder or the flag's, each with its environment", () => {
    process.env.MOLT_TEST_ROOT = "/data";
    const root = `\${env:MOLT_TEST_ROOT}`;
    const several = right.replace("a.jsonl", `["a, b.jsonl", "${root}/b.csv", "sub/${root}"]`);
    const { recipe, provenance } = loadRecipe(write("several.yaml", several));
    expect(recipe.data.prompt_dataset).toEqual([join(folder, "a, b.jsonl"), "/data/b.csv", join(folder, "sub/data")]);
    const text = resolvedYaml(recipe, provenance);
    expect(text).toContain(`a, b.jsonl", "${root}/b.csv", "`);
    expect(text).not.toContain("/data/");
    expect(loadRecipe(write("several-again.yaml", text)).recipe).toEqual(recipe);
    const flags = { "data.prompt_dataset": "x.jsonl,/y.csv", "data.prompt_probs": "1,2" };
    const flagged = loadRecipe(write("flagged.yaml", right), { flags });
    expect(flagged.recipe.data.prompt_dataset).toEqual([resolve("x.jsonl"), "/y.csv"]);
    expect(flagged.recipe.data.prompt_probs).toEqual([1, 2]);
    expect(loadRecipe(write("flagged-again.yaml", resolvedYaml(flagged.recipe, flagged.provenance))).recipe).toEqual(
      flagged.recipe,
    );
    expect(problems(right.replace("a.jsonl", `[a.jsonl, "\${env:NO}"]`))).toEqual([
      "2:25 warning: data.prompt_dataset takes 'NO' from the environment, where it is not set",
    ]);
  });

  test("resolvedYaml names each value's source and loads back to the same values", () => {
    const path = write("tricky.yaml", `${right.replace("a.jsonl", "\"a # b: 'c'.jsonl\"")}run: { name: "12" }\n`);
    const flags = { "algo.kl.init_coef": "0.001", "eval.max_new_tokens": "8", "run.seed": "3" };
    const { recipe, provenance } = loadRecipe(path, { flags });
    const text = resolvedYaml(recipe, provenance);
    expect(text).toContain("\n  seed: 3  # --run.seed\n");
    expect(text).toContain("\n    lr: 0.000001  # default\n");
    expect(text).toContain(`\n  name: "12"  # ${path}:4:14\n`);
    expect(loadRecipe(write("tricky-again.yaml", text)).recipe).toEqual(recipe);
  });

  test("every key gives its default back through resolvedYaml, whatever legal number it has", () => {
    const path = write("numbers.yaml", right);
    fc.assert(
      fc.property(fc.double({ min: 1e-300, max: 1e300, noNaN: true }), fc.nat(), (lr, seed) => {
        const { recipe, provenance } = loadRecipe(path, { flags: { "actor.adam.lr": `${lr}`, "run.seed": `${seed}` } });
        expect(recipe.actor.adam.lr).toBe(lr);
        expect(loadRecipe(write("numbers.yaml", resolvedYaml(recipe, provenance))).recipe).toEqual(recipe);
      }),
      { numRuns: 30 },
    );
  });

  test("an absent recipe, and a folder, are named", () => {
    expect(failure(join(folder, "absent.yaml"))).toContain("absent.yaml there is no such recipe");
    expect(failure(folder)).toContain("this is not a file");
  });

  test("all problems come in one error", () => {
    const path = write("many.yaml", `${right}run: { sed: 1 }\nrollout: { top_p: 0.9 }\n`);
    expect(failure(path, { "train.agent_path": "~/a.ts" })).toContain(
      "--train.agent_path has '~/a.ts', which no shell fills in here: give the path in full",
    );
    expect(failure(path, { "run.steps": "x" }).split("\n")).toEqual([
      "many.yaml:4:8 unknown key 'sed' in 'run': did you mean 'seed'?",
      expect.stringContaining("many.yaml:5:19 rollout.top_p must be 1, not 0.9"),
      "--run.steps must be an integer of at least 1 or null, not 'x'",
    ]);
  });
});

describe("the schema", () => {
  test("every key and section has a sentence, and every default is legal", () => {
    for (const { key, description, default: value, schema, derived } of recipeKeys.values()) {
      expect(description, key).toMatch(/^\S.*\.$/);
      if (value !== undefined) expect(schema.safeParse(value).success, key).toBe(true);
      else expect(["run.name", "actor.model_name_or_path"], `${key} ${derived}`).toContain(key);
    }
    for (const { key, description } of recipeSections.values()) expect(description, key).toMatch(/^[A-Z].*\.$/);
  });

  test("the metrics that a key moves are metrics that the code makes", () => {
    const made = new CodeIndex(new CodeFolder(join(root, "runner/src")).files()).namesOf("metric");
    expect(made.length).toBeGreaterThan(20);
    const isMade = (name: string) =>
      made.includes(name) || /^(stop|turn)\/(length|context|max_turns|timeout)$/.test(name);
    const moved = [...recipeKeys.values()].flatMap(({ metrics = [] }) => metrics);
    expect(moved.length).toBeGreaterThan(30);
    expect(moved.filter((name) => !isMade(name))).toEqual([]);
  });

  test("no key is a secret's: those come from the environment, whose values nobody sees", () => {
    expect([...recipeKeys.keys()].filter((key) => /(api_key|token|secret|password)$/.test(key))).toEqual([]);
  });

  test("every shipped recipe is right, names it on its first line, and is a recipe to the language server", () => {
    const recipes = files.filter((path) => /^(recipes|runner\/templates)\/.*\.ya?ml$/.test(path));
    expect(recipes.length).toBeGreaterThan(6);
    for (const path of recipes) {
      const named = /^# yaml-language-server: \$schema=(\S+)\n/.exec(read(path))?.[1];
      // A template's lies where the package will.
      const installed = path.startsWith("runner/templates/") && "node_modules/molt-runner/dist/recipe-schema.json";
      expect(named, path).toBe(installed || relative(dirname(path), "recipes/schema.json"));
      expect(diagnose(read(path), join(root, path)), path).toEqual([]);
      expect(isRecipe(`/elsewhere/${basename(path)}`, read(path)), path).toBe(true);
    }
    expect(read("runner/build.mjs")).toContain('"recipe-schema.json"');
  });

  test("JSON Schema carries defaults, bounds and descriptions, and refuses unknown keys", () => {
    const schema = recipeJsonSchema() as { properties: Record<string, Record<string, unknown>> };
    expect(schema).toMatchObject({ additionalProperties: false });
    expect(schema).not.toHaveProperty("required");
    expect(schema.properties.extends).toMatchObject({ type: "string" });
    expect(schema.properties.rollout).toMatchObject({
      additionalProperties: false,
      properties: { timeout: { default: 300, exclusiveMinimum: 0, unit: "seconds" } },
    });
  });
});

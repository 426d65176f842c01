/** Text in, text out: a small package and its recipes, and what leads from one to the other. */
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Location, TextDocumentEdit } from "vscode-languageserver";
import { CodeFolder, CodeIndex } from "../../runner/src/code/index.ts";
import { codeLenses } from "../src/service/code/lenses.ts";
import { definition, references, workspaceSymbols } from "../src/service/code/navigation.ts";
import { rename, renameRange } from "../src/service/code/rename.ts";
import type { CodeWorkspace } from "../src/service/code/workspace.ts";
import { applied, documentAt, marked, source, workspaceOf } from "./golden.ts";

const model = "actor: { model_name_or_path: model, init: random }\ndata: { prompt_dataset: prompts.jsonl }\n";
const texts: Record<string, string> = {
  "src/recipe/schema/algo.ts": `export const algo = section("Algorithms.", {
  advantage: section("Advantages.", { estimator: key(z.enum(["reinforce_baseline", "rloo"]), "rloo", {}) }),
});
`,
  "src/recipe/schema/rollout.ts":
    'export const rollout = section("Sampling.", { batch_size: key(positive, 64, {}) });\n',
  "src/advantages/registry.ts": `import { rloo } from "./rloo.ts";
import { reinforceBaseline } from "./rloo.ts";
/** \`algo.advantage.estimator\`. */
export const advantageEstimators = { rloo, reinforce_baseline: reinforceBaseline };
`,
  "src/advantages/rloo.ts": "export const rloo = () => 0;\nexport const reinforceBaseline = () => 1;\n",
  "src/loop.ts": `import type { RunEvent } from "./events.ts";
export function run({ recipe }: Options, log: Log): void {
  const { batch_size } = recipe.rollout;
  const metrics = { reward: batch_size, rows: 1 };
  log.emit({ type: "step", metrics });
  show(metrics.reward);
}
`,
  "src/events.ts":
    'const runEvent = z.union([one({ type: z.literal("step"), metrics }), one({ type: z.literal("ended") })]);\n',
  "node_modules/other/index.ts": "export const metrics = { theirs: 1 };\n",
  "agent.ts": 'import { Env } from "molt-runner";\nexport default class Sort extends Env {}\n',
  "base.yaml": `${model}train: { agent_path: agent.ts }\nrollout: { batch_size: 8 }\n`,
  "rloo.yaml": "extends: base.yaml\nrollout:\n  batch_size: 16\nalgo: { advantage: { estimator: rloo } }\n",
  "sft.yaml": "actor: { model_name_or_path: model }\ndata: { prompt_dataset: a.jsonl, output_key: reply }\n",
};

let folder: string;
let workspace: CodeWorkspace;
const at = (name: string) => join(folder, name);

beforeAll(() => {
  folder = realpathSync(mkdtempSync(join(tmpdir(), "molt-code-")));
  for (const [name, text] of Object.entries(texts)) {
    mkdirSync(dirname(at(name)), { recursive: true });
    writeFileSync(at(name), text);
  }
  const recipes = Object.keys(texts).filter((name) => name.endsWith(".yaml"));
  workspace = {
    ...workspaceOf(),
    roots: [folder],
    readFile: (path) => texts[path.slice(folder.length + 1)],
    policyShape: () => {
      throw new Error("there is no model here");
    },
    recipes: () => recipes.map((name) => documentAt(at(name), texts[name]!)),
    code: new CodeIndex(new CodeFolder(folder).files()),
  };
});
afterAll(() => rmSync(folder, { recursive: true }));

/** The document of a name with a cursor in front of the first `word`. */
function cursor(name: string, word: string) {
  const text = texts[name]!;
  expect(text).toContain(word);
  const offset = text.indexOf(word);
  return marked(`${text.slice(0, offset)}|${text.slice(offset)}`, at(name));
}

/** `name: the text there`. */
function shown({ uri, range }: Location): string {
  const path = fileURLToPath(uri);
  return `${path.slice(folder.length + 1)}: ${source(documentAt(path, readFileSync(path, "utf8"))).getText(range)}`;
}

describe("definition", () => {
  it.each([
    ["a recipe's estimator: its function", "rloo.yaml", "rloo }", ["src/advantages/rloo.ts: rloo"]],
    [
      "a registry's name: its function",
      "src/advantages/registry.ts",
      "reinforce_baseline:",
      ["src/advantages/rloo.ts: reinforceBaseline"],
    ],
    ["a word of the schema", "src/recipe/schema/algo.ts", '"rloo"]', ["src/advantages/rloo.ts: rloo"]],
    ["a recipe's key: the schema", "base.yaml", "batch_size", ["src/recipe/schema/rollout.ts: batch_size"]],
    ["a key that code reads: the schema", "src/loop.ts", "batch_size", ["src/recipe/schema/rollout.ts: batch_size"]],
    ["a section", "src/loop.ts", "rollout;", ["src/recipe/schema/rollout.ts: rollout"]],
    ["a metric: where it is made", "src/loop.ts", "reward)", ["src/loop.ts: reward"]],
    ["an event: its type", "src/loop.ts", '"step"', ['src/events.ts: "step"']],
    ["a path: the file, as before", "rloo.yaml", "base.yaml", ["base.yaml: "]],
    ["nothing else", "src/loop.ts", "show(", []],
  ])("of %s", (_, name, word, expected) => {
    const { document, position } = cursor(name, word);
    expect(definition(document, position, workspace).map(shown)).toEqual(expected);
  });
});

describe("references", () => {
  const found = (name: string, word: string) => {
    const { document, position } = cursor(name, word);
    return references(document, position, workspace).map(shown);
  };

  it("of a key are the same from recipes and from code: the schema, who reads it, who sets it", () => {
    const expected = [
      "src/recipe/schema/rollout.ts: batch_size",
      "src/loop.ts: batch_size",
      "base.yaml: batch_size",
      "rloo.yaml: batch_size",
    ];
    expect(found("base.yaml", "batch_size")).toEqual(expected);
    expect(found("src/loop.ts", "batch_size }")).toEqual(expected);
    expect(found("src/recipe/schema/rollout.ts", "batch_size")).toEqual(expected);
  });

  it("of an estimator: function, registry, schema, and the recipes that take it, by default too", () => {
    const rloo = [
      "src/advantages/rloo.ts: rloo",
      "src/advantages/registry.ts: rloo",
      'src/recipe/schema/algo.ts: "rloo"',
      'src/recipe/schema/algo.ts: "rloo"',
      "rloo.yaml: rloo",
    ];
    expect(found("src/advantages/rloo.ts", "rloo")).toEqual(rloo);
    expect(found("rloo.yaml", "rloo }")).toEqual(rloo);
    // The schema's own default is reinforce_baseline; supervised training has no advantages.
    expect(found("src/advantages/rloo.ts", "reinforceBaseline").slice(-1)).toEqual(["base.yaml: "]);
  });

  it("of an agent: the recipes that run it; of a metric and an event: code alone", () => {
    expect(found("agent.ts", "Sort")).toEqual(["agent.ts: Sort", "base.yaml: agent.ts", "rloo.yaml: "]);
    expect(found("src/loop.ts", "reward:")).toEqual(["src/loop.ts: reward", "src/loop.ts: reward"]);
    expect(found("src/events.ts", '"step"')).toEqual(['src/events.ts: "step"', 'src/loop.ts: "step"']);
    expect(found("src/events.ts", "metrics")).toEqual([]);
  });
});

describe("rename", () => {
  /** The lines that change. */
  function renamed(name: string, word: string, to: string): Record<string, string> {
    const { document, position } = cursor(name, word);
    expect(renameRange(document, position, workspace)).toBeDefined();
    const changes = (rename(document, position, to, workspace).documentChanges ?? []) as TextDocumentEdit[];
    const entries = changes.map(({ textDocument: { uri }, edits }) => {
      const file = fileURLToPath(uri).slice(folder.length + 1);
      const before = texts[file]!.split("\n");
      const after = applied(documentAt(at(file), texts[file]!), edits as never).split("\n");
      return [
        file,
        after
          .filter((line, index) => line !== before[index])
          .join("\n")
          .trim(),
      ];
    });
    return Object.fromEntries(entries);
  }

  it("of an estimator changes registry, schema and recipes, from any of them, and not its function", () => {
    const expected = {
      "src/advantages/registry.ts":
        "export const advantageEstimators = { loo: rloo, reinforce_baseline: reinforceBaseline };",
      "src/recipe/schema/algo.ts":
        'advantage: section("Advantages.", { estimator: key(z.enum(["reinforce_baseline", "loo"]), "loo", {}) }),',
      "rloo.yaml": "algo: { advantage: { estimator: loo } }",
    };
    expect(renamed("rloo.yaml", "rloo }", "loo")).toEqual(expected);
    expect(renamed("src/advantages/registry.ts", "rloo, re", "loo")).toEqual(expected);
  });

  it("of a key, from code, changes the schema, its readers and the recipes", () => {
    expect(renamed("src/loop.ts", "batch_size }", "groups")).toEqual({
      "src/recipe/schema/rollout.ts": 'export const rollout = section("Sampling.", { groups: key(positive, 64, {}) });',
      "src/loop.ts": "const { groups: batch_size } = recipe.rollout;",
      "base.yaml": "rollout: { groups: 8 }",
      "rloo.yaml": "groups: 16",
    });
  });

  it("of a metric and of an event", () => {
    expect(renamed("src/loop.ts", "reward)", "score")).toEqual({
      "src/loop.ts": "const metrics = { score: batch_size, rows: 1 };\n  show(metrics.score);",
    });
    expect(renamed("src/loop.ts", '"step"', "stepped")).toEqual({
      "src/events.ts":
        'const runEvent = z.union([one({ type: z.literal("stepped"), metrics }), one({ type: z.literal("ended") })]);',
      "src/loop.ts": 'log.emit({ type: "stepped", metrics });',
    });
  });

  it("refuses a name that is taken, one that is none, and what the open folders do not hold", () => {
    const asked = (to: string, roots = [folder]) => {
      const { document, position } = cursor("src/loop.ts", "reward)");
      return () => rename(document, position, to, { ...workspace, roots });
    };
    expect(asked("rows")).toThrow("there is the metric 'rows' already");
    expect(asked("a b")).toThrow("'a b' is no name");
    expect(asked("score", [at("src/advantages")])).toThrow("the metric 'reward' is the runner's own");
  });

  it("leaves classes and functions to TypeScript, and sections to who names their files", () => {
    for (const [name, word] of [
      ["agent.ts", "Sort"],
      ["src/advantages/rloo.ts", "rloo"],
      ["src/loop.ts", "rollout;"],
    ] as const) {
      const { document, position } = cursor(name, word);
      expect(renameRange(document, position, workspace)).toBeUndefined();
    }
  });
});

describe("lenses in code", () => {
  const lenses = (name: string) => {
    const found = codeLenses(documentAt(at(name), texts[name]!), workspace);
    return found.map(({ range, command }) => `${range.start.line} ${command!.title} ${command!.command}`);
  };

  it("say which recipes take a function or an agent", () => {
    expect(lenses("src/advantages/rloo.ts")).toEqual([
      "0 used by 1 recipe molt.showReferences",
      "1 used by 1 recipe molt.showReferences",
    ]);
    expect(lenses("agent.ts")).toEqual(["1 used by 2 recipes molt.showReferences"]);
    expect(lenses("src/loop.ts")).toEqual([]);
  });

  it("give the client what it shows", () => {
    const [first] = codeLenses(documentAt(at("agent.ts"), texts["agent.ts"]!), workspace);
    const [uri, position, places] = first!.command!.arguments as [string, object, Location[]];
    expect([uri, position]).toEqual([pathToFileURL(at("agent.ts")).href, { line: 1, character: 21 }]);
    expect(places.map(shown)).toEqual(["base.yaml: agent.ts", "rloo.yaml: "]);
  });
});

describe("symbols of the workspace", () => {
  it("are recipes and all that code makes, by letters in order, packages' own left out", () => {
    const named = (query: string) =>
      workspaceSymbols(query, workspace).map((one) => `${one.containerName} ${one.name}`);
    expect(named("rloo")).toEqual(["run recipe rloo.yaml", "estimator rloo"]);
    expect(named("rolloutbatch")).toEqual([
      "base.yaml rollout.batch_size",
      "rloo.yaml rollout.batch_size",
      "key rollout.batch_size",
    ]);
    expect(named("sort")).toEqual(["agent Sort"]);
    expect([...named("theirs"), ...named("rewrd"), ...named("ended")]).toEqual(["metric reward", "event ended"]);
  });
});

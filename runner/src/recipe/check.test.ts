import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { exportHeader, readModelFolder } from "../data/model-folder.ts";
import { arithmetic } from "./arithmetic.ts";
import { type CheckOptions, checkRecipe } from "./check.ts";
import { type Diagnostic, formatDiagnostic } from "./diagnostic.ts";
import { loadRecipe } from "./index.ts";

const shipped = fileURLToPath(new URL("../../../recipes", import.meta.url));
let root: string;
const at = (path: string) => join(root, "recipes", path);

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "molt-check-"));
  cpSync(shipped, join(root, "recipes"), { recursive: true });
});
afterEach(() => rmSync(root, { recursive: true }));

const warmUp = { mode: "launch", verb: "sft" } as const;

async function failure(path: string, options: CheckOptions): Promise<string> {
  const error = await checkRecipe(at(path), options).then(
    () => undefined,
    (caught) => caught,
  );
  expect(error?.exitCode).toBe(2);
  return error.format().replaceAll(`${root}/`, "");
}

function edit(path: string, change: (text: string) => string): void {
  writeFileSync(at(path), change(readFileSync(at(path), "utf8")));
}

describe("a model folder that another recipe exports", () => {
  test("is accepted by check, which names that recipe and its command", async () => {
    const { verb, problems, arithmetic: sums } = await checkRecipe(at("quickstart.yaml"), { mode: "check" });
    expect(verb).toBe("run");
    expect(problems.map((problem) => formatDiagnostic(problem).replaceAll(`${root}/`, ""))).toEqual([
      "recipes/quickstart.yaml:11:23 info: actor.model_name_or_path runs/quickstart-warmup-model is not there yet\n" +
        "  fix: make it with: npx molt-runner sft recipes/quickstart/warmup.yaml",
    ]);
    // case E2
    expect(sums).toMatchObject({ rows: 256, steps: 200, updates: 200 });
    expect(sums.line).toBe(
      "32 prompts x 8 samples = 256 rows a batch, 200 batches x 1 update = 200 optimizer steps, " +
        "microbatches of at most 16384 tokens",
    );
  });

  test("is refused at launch with the recipe and the command that make it", async () => {
    expect(await failure("quickstart.yaml", { mode: "launch" })).toBe(
      "recipes/quickstart.yaml:11:23 actor.model_name_or_path runs/quickstart-warmup-model is not there yet\n" +
        "  fix: make it with: npx molt-runner sft recipes/quickstart/warmup.yaml",
    );
  });

  test("is missing when nobody exports it", async () => {
    rmSync(at("quickstart/warmup.yaml"));
    expect(await failure("quickstart.yaml", { mode: "check" })).toContain("this model folder does not exist");
  });
});

describe("the files of a recipe", () => {
  test("a teacher whose tokenizer is another, or none, is refused; any other reference may have none", async () => {
    const teacher = at("teacher");
    cpSync(at("quickstart/model"), teacher, { recursive: true });
    const policy = { "actor.model_name_or_path": at("quickstart/model"), "actor.init": "random" };
    const kl = { "algo.kl.init_coef": "1", "algo.kl.use_loss": "false", "algo.kl.estimator": "k1" };
    const off = { "algo.advantage.estimator": "on_policy_distill", "algo.dynamic_filtering": "off" };
    const flags = { ...policy, ...kl, ...off, "ref.model_name_or_path": teacher };
    const refusal = async () => failure("quickstart.yaml", { mode: "check", flags });
    const { units } = readModelFolder(teacher, { weights: "none" }).decoder;
    const values = units.flatMap(({ parameters }) => parameters.map(({ shape }) => shape.reduce((a, b) => a * b)));
    const bytes = Buffer.alloc(4 * values.reduce((a, b) => a + b));
    writeFileSync(join(teacher, "model.safetensors"), Buffer.concat([exportHeader(units), bytes]));
    await checkRecipe(at("quickstart.yaml"), { mode: "check", flags });
    const file = join(teacher, "tokenizer.json");
    const text = readFileSync(file, "utf8");
    writeFileSync(file, text.replace(/"a": *\d+/, '"a": 72').replace(/"b": *\d+/, '"b": 71'));
    expect(await refusal()).toContain(
      'ref.model_name_or_path: 2 tokens have other ids than in the policy\'s tokenizer, such as "a" is 72 there and ' +
        "71 here\n  fix: take a model with the policy's tokenizer",
    );
    rmSync(file);
    expect(await refusal()).toContain("this folder has no tokenizer.json");
    await checkRecipe(at("quickstart.yaml"), {
      mode: "check",
      flags: { ...flags, "algo.advantage.estimator": "rloo" },
    });
  });

  test("a reference that does not know every token of the policy is refused", async () => {
    const ref = fileURLToPath(new URL("../trainer/fixtures/ref", import.meta.url));
    const policy = { "actor.model_name_or_path": at("quickstart/model"), "actor.init": "random" };
    const flags = { ...policy, "ref.model_name_or_path": ref, "algo.kl.init_coef": "0.1" };
    const refused = await failure("quickstart.yaml", { mode: "check", flags });
    // By the two config.json.
    expect(refused).toContain("ref.model_name_or_path knows 13 tokens, the policy's tokenizer 101\n");
  });

  test("the warm-up's are right", async () => {
    const { problems, arithmetic: sums } = await checkRecipe(at("quickstart/warmup.yaml"), warmUp);
    expect(problems).toEqual([]);
    expect(sums).toMatchObject({ rows: 64, steps: 80, updates: 80 });
  });

  // cases J1, J3
  test("a broken row is named by file and line", async () => {
    edit("quickstart/warmup.jsonl", (text) => text.replace(/\n.*\n/, '\n{"prompt": \n'));
    expect(await failure("quickstart/warmup.yaml", warmUp)).toMatch(/^recipes\/quickstart\/warmup.jsonl:2 not a row/);
    edit("quickstart/warmup.yaml", (text) => text.replace("warmup.jsonl", "absent.jsonl"));
    expect(await failure("quickstart/warmup.yaml", warmUp)).toMatch(
      /warmup.yaml:20:19 data.prompt_dataset recipes\/quickstart\/absent.jsonl: this file does not exist/,
    );
  });

  test("held-out rows are read too, and the option that names them is eval's", async () => {
    writeFileSync(at("quickstart/heldout.jsonl"), "");
    expect(await failure("quickstart.yaml", { mode: "check" })).toMatch(
      /^recipes\/quickstart\/heldout.jsonl eval.dataset: this file is empty/,
    );
  });

  test("a model folder without weights, and a tokenizer without a template", async () => {
    const flags = { "actor.init": "weights" };
    expect(await failure("quickstart/warmup.yaml", { ...warmUp, flags })).toMatch(
      /^recipes\/quickstart\/model this model folder holds no weights/,
    );
    rmSync(at("quickstart/model/chat_template.jinja"), { force: true });
    edit("quickstart/model/tokenizer_config.json", (text) => {
      const { chat_template: _, ...rest } = JSON.parse(text);
      return JSON.stringify(rest);
    });
    expect(await failure("quickstart/warmup.yaml", warmUp)).toMatch(
      /^recipes\/quickstart\/model this tokenizer has no chat template/,
    );
  });

  test("data.max_len above the model's context", async () => {
    const flags = { "data.max_len": "65" };
    edit("quickstart/model/config.json", (text) => text.replace(/("max_position_embeddings": )\d+/, "$164"));
    expect(await failure("quickstart/warmup.yaml", { ...warmUp, flags })).toBe(
      "--data.max_len is 65, the context of recipes/quickstart/model is 64 tokens\n  fix: lower data.max_len",
    );
    await checkRecipe(at("quickstart/warmup.yaml"), warmUp);
  });

  test("prompts that leave no room for a reply, held-out ones too; ten are named", async () => {
    const flags = { "actor.model_name_or_path": at("quickstart/model"), "actor.init": "random" };
    // This model's template writes two tokens before a prompt and two behind it, and its other tokens are characters.
    const prompt = (length: number) => `${JSON.stringify({ prompt: "7".repeat(length), label: "" })}\n`;
    writeFileSync(at("quickstart/prompts.jsonl"), prompt(4) + prompt(59) + prompt(60));
    writeFileSync(at("quickstart/heldout.jsonl"), prompt(100).repeat(12));
    const fix = "  fix: raise data.max_len, leave these rows out, or name another column with data.input_key";
    const heldOut = Array.from({ length: 10 }, (_, i) => `    heldout:${i + 1} has 104 tokens`);
    expect((await failure("quickstart.yaml", { mode: "check", flags })).split("\n")).toEqual([
      "recipes/quickstart/heldout.jsonl eval.dataset: 12 prompts leave no room for a reply, since data.max_len is 64:",
      ...heldOut,
      "    and 2 more",
      fix,
      "recipes/quickstart/prompts.jsonl data.prompt_dataset: 1 prompt leaves no room for a reply, " +
        "since data.max_len is 64:",
      "    prompts:3 has 64 tokens",
      fix,
    ]);
  });

  test("a row that the chat template refuses is named", async () => {
    const flags = { "actor.model_name_or_path": at("quickstart/model"), "actor.init": "random" };
    edit("quickstart/model/tokenizer_config.json", (text) => {
      const config = JSON.parse(text);
      const refuse = "{% if messages[0].content == 'x' %}{{ raise_exception('no x') }}{% endif %}";
      return JSON.stringify({ ...config, chat_template: refuse + config.chat_template });
    });
    edit("quickstart/prompts.jsonl", (text) => `${text}{"prompt": "x", "label": ""}\n`);
    expect(await failure("quickstart.yaml", { mode: "check", flags })).toBe(
      "recipes/quickstart/prompts.jsonl row prompts:4801: the chat template refuses this conversation: no x",
    );
  });

  test("an agent is parsed and never run", async () => {
    const mark = join(root, "ran");
    const agent = `import { writeFileSync } from "node:fs";\nwriteFileSync(${JSON.stringify(mark)}, "");\n`;
    writeFileSync(at("quickstart/agent.ts"), `${agent}export default class {}\n`);
    await checkRecipe(at("quickstart.yaml"), { mode: "check" });
    writeFileSync(at("quickstart/agent.ts"), agent);
    expect(await failure("quickstart.yaml", { mode: "check" })).toContain(
      "agent.ts train.agent_path: this file has no default export",
    );
    writeFileSync(at("quickstart/agent.ts"), "export default class {\n  step( {}\n");
    expect(await failure("quickstart.yaml", { mode: "check" })).toMatch(/agent.ts:\d+:\d+ train.agent_path: Expected/);
    writeFileSync(at("quickstart/agent.ts"), 'import "./absent.ts";\nexport default class {}\n');
    expect(await failure("quickstart.yaml", { mode: "check" })).toContain(
      'agent.ts:1:8 train.agent_path: Could not resolve "./absent.ts"',
    );
    rmSync(at("quickstart/agent.ts"));
    expect(await failure("quickstart.yaml", { mode: "check" })).toContain(
      "quickstart.yaml:31:15 train.agent_path recipes/quickstart/agent.ts: this file does not exist",
    );
    expect(existsSync(mark)).toBe(false);
    writeFileSync(at("quickstart/agent.py"), "");
    const flags = { "train.agent_path": at("quickstart/agent.py") };
    expect(await failure("quickstart.yaml", { mode: "check", flags })).toBe(
      "recipes/quickstart/agent.py train.agent_path: this is not a TypeScript or JavaScript file\n" +
        "  fix: a program in another language is an agent through train.agent_command",
    );
  });

  test("a command's words that are paths are there; it is never started", async () => {
    edit("quickstart.yaml", (text) => text.replace(/agent_path: .*/, "agent_command: [no-such-program, ./agent.py]"));
    expect(await failure("quickstart.yaml", { mode: "check" })).toContain(
      "train.agent_command: recipes/agent.py does not exist",
    );
    writeFileSync(at("agent.py"), "");
    const { recipe } = await checkRecipe(at("quickstart.yaml"), { mode: "check" });
    expect(recipe.train.agent_command).toEqual(["no-such-program", at("agent.py")]);
  });

  test("all that is wrong comes in one error", async () => {
    rmSync(at("quickstart/agent.ts"));
    rmSync(at("quickstart/prompts.jsonl"));
    rmSync(at("quickstart/heldout.jsonl"));
    const lines = (await failure("quickstart.yaml", { mode: "check" })).split("\n").filter((line) => /^\S/.test(line));
    expect(lines.map((line) => line.split(" ")[1])).toEqual([
      "train.agent_path",
      "eval.dataset",
      "data.prompt_dataset",
    ]);
  });

  test("several files are read as one dataset, and each is named where it is wrong", async () => {
    const row = '{"prompt": "sort 21", "label": "12"}\n';
    writeFileSync(at("quickstart/more.csv"), "prompt,label\nsort 21,12\n");
    const paths = [at("quickstart/prompts.jsonl"), at("quickstart/more.csv")].join(",");
    const flags = { "data.prompt_dataset": paths, "data.prompt_probs": "1,1", "run.steps": "null" };
    // 4801 prompts in batches of 32.
    expect((await checkRecipe(at("quickstart.yaml"), { mode: "check", flags })).arithmetic.steps).toBe(151);
    edit("quickstart/prompts.jsonl", (text) => `${row}{}\n${text}`);
    writeFileSync(at("quickstart/more.csv"), "prompt,label\nsort 21\n");
    const found = (await failure("quickstart.yaml", { mode: "check", flags })).split("\n");
    expect(found).toEqual([
      expect.stringMatching(/^recipes\/quickstart\/prompts.jsonl:2 no column "prompt"/),
      "recipes/quickstart/more.csv:2 not a row: it has 1 cell, the header 2 cells",
    ]);
    const absent = { ...flags, "data.prompt_dataset": `${at("no.csv")},${at("none.csv")}` };
    const options = { mode: "check", flags: absent } as const;
    const { diagnostics } = await checkRecipe(at("quickstart.yaml"), options).catch((error) => error);
    expect(diagnostics.map(({ message }: Diagnostic) => message.replaceAll(`${root}/`, ""))).toEqual([
      expect.stringMatching(/^actor.model_name_or_path runs\/quickstart-warmup-model is not there yet/),
      expect.stringMatching(/^data.prompt_dataset recipes\/no.csv: this file does not exist/),
      expect.stringMatching(/^data.prompt_dataset recipes\/none.csv: this file does not exist/),
    ]);
  });

  test("too long prompts are named in their file", async () => {
    writeFileSync(at("quickstart/long.csv"), `prompt,label\nsort ${"1".repeat(80)},1\n`);
    const paths = [at("quickstart/prompts.jsonl"), at("quickstart/long.csv")].join(",");
    const model = { "actor.model_name_or_path": at("quickstart/model"), "actor.init": "random" };
    const flags = { ...model, "data.prompt_dataset": paths };
    expect(await failure("quickstart.yaml", { mode: "check", flags })).toMatch(
      /^recipes\/quickstart\/long.csv data.prompt_dataset: 1 prompt leaves no room .*\n {4}long:1 has \d+ tokens/,
    );
  });

  test("fewer rows than a batch are a warning", async () => {
    const flags = { "data.max_samples": "5" };
    const { problems } = await checkRecipe(at("quickstart.yaml"), { mode: "check", flags });
    expect(problems.map(({ severity, message }) => [severity, message])).toContainEqual([
      "warning",
      "data.prompt_dataset has 5 rows, fewer than the 32 of rollout.batch_size",
    ]);
  });
});

test("case E2: without run.steps the data decides, a short last batch included", () => {
  const { recipe } = loadRecipe(at("quickstart.yaml"), {
    flags: { "data.epochs": "3", "train.updates_per_batch": "2" },
  });
  const free = { ...recipe, run: { ...recipe.run, steps: null } };
  // 3 x 100 prompts in batches of 32: nine full ones and one of 12.
  expect(arithmetic(free, "run", 100)).toMatchObject({ rows: 256, steps: 10, updates: 20 });
  expect(arithmetic(free, "run", null).line).toContain("steps from data.epochs");
});

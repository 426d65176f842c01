import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { afterAll, afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { z } from "zod";
import { loadRecipe, resolvedYaml } from "../recipe/index.ts";
import { type CheckVerbOptions, checkCommand, explainCommand } from "./check.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-check-verb-"));
const quickstart = "recipes/quickstart.yaml";
let out: string[];

beforeEach(() => {
  out = [];
  vi.spyOn(console, "log").mockImplementation((line: string) => void out.push(line));
});
afterEach(() => vi.restoreAllMocks());
afterAll(() => rmSync(folder, { recursive: true }));

function write(name: string, text: string): string {
  writeFileSync(join(folder, name), text);
  return join(folder, name);
}

const options = (format: CheckVerbOptions["format"], flags = {}): CheckVerbOptions => ({
  format,
  flags,
  version: "1.2",
});

async function check(paths: string[], format: CheckVerbOptions["format"], flags = {}): Promise<number> {
  return checkCommand(paths, options(format, flags)).catch((error) => {
    out.push(error.format());
    return error.exitCode as number;
  });
}

const wrong = (name: string) =>
  write(name, "# 100%: a, b\nrollout: { top_p: 0.9 }\nrun: { sed: 1 }\nactor: { model_name_or_path: m }\n");

/** What the public schema (SARIF 2.1.0) asks of the parts that we write: names, required members and types. */
const text = z.strictObject({ text: z.string().min(1) });
const region = z.strictObject({
  startLine: z.int().min(1),
  startColumn: z.int().min(1).optional(),
  endLine: z.int().min(1).optional(),
  endColumn: z.int().min(1).optional(),
});
const artifact = z.strictObject({ uri: z.string().regex(/^[\w\-./~%:@!$&'()*+,;=]+$/) });
const log = z.strictObject({
  $schema: z.url(),
  version: z.literal("2.1.0"),
  runs: z.array(
    z.strictObject({
      tool: z.strictObject({
        driver: z.strictObject({
          name: z.string(),
          version: z.string(),
          rules: z.array(z.strictObject({ id: z.string(), shortDescription: text.optional() })),
        }),
      }),
      columnKind: z.enum(["utf16CodeUnits", "unicodeCodePoints"]),
      results: z.array(
        z.strictObject({
          ruleId: z.string(),
          level: z.enum(["none", "note", "warning", "error"]),
          message: text,
          locations: z
            .array(
              z.strictObject({
                physicalLocation: z.strictObject({ artifactLocation: artifact, region: region.optional() }),
              }),
            )
            .optional(),
        }),
      ),
    }),
  ),
});

describe("several recipes in one call", () => {
  test("text: the right ones' sums, then all that is wrong as one error", async () => {
    const flags = { "actor.model_name_or_path": "recipes/quickstart/model", "actor.init": "random" };
    expect(await check([quickstart, wrong("a.yaml"), join(folder, "no.yaml")], "text", flags)).toBe(2);
    expect(out.slice(0, 2)).toEqual([
      expect.stringMatching(/^32 prompts x 8 samples = 256 rows a batch/),
      `${quickstart} is right: molt-runner run ${quickstart}`,
    ]);
    expect(out.slice(2).join("\n").replaceAll(`${folder}/`, "").split("\n")).toEqual([
      "a.yaml:1:1 data.prompt_dataset is missing: run needs a file of rows",
      "a.yaml:1:1 train.agent_path is missing: run needs the file whose default export is the agent's class",
      expect.stringMatching(/^a.yaml:2:19 rollout.top_p must be 1/),
      "a.yaml:3:8 unknown key 'sed' in 'run': did you mean 'seed'?",
      "no.yaml there is no such recipe",
      "  fix: name a recipe's YAML file",
    ]);
  });

  test("json: one object a line", async () => {
    expect(await check([wrong("a.yaml"), quickstart], "json", { "actor.init": "random" })).toBe(2);
    const [first, second] = out.map((line) => JSON.parse(line));
    expect(first).toMatchObject({ ok: false, path: join(folder, "a.yaml"), problems: { length: 4 } });
    expect(first).not.toHaveProperty("recipe");
    expect(second).toMatchObject({ ok: true, verb: "run", recipe: { run: { steps: 200 } }, arithmetic: { rows: 256 } });
  });

  test("sarif", async () => {
    const path = wrong("a b#.yaml");
    expect(await check([path, quickstart], "sarif", { "run.steps": "x", "eval.steps": "5" })).toBe(2);
    const parsed = log.parse(JSON.parse(out.join("")));
    const { tool, results } = parsed.runs[0]!;
    const [missing, , topP, , flag] = results;
    expect(missing).toMatchObject({ ruleId: "guardrail/required", level: "error" });
    expect(topP!.ruleId).toBe("guardrail/topP");
    expect(tool.driver.rules).toContainEqual({
      id: "guardrail/topP",
      shortDescription: { text: "Training samples from the whole vocabulary." },
    });
    const uri = `${folder}/a%20b%23.yaml`;
    expect(topP!.locations).toEqual([
      {
        physicalLocation: {
          artifactLocation: { uri },
          region: { startLine: 2, startColumn: 19, endLine: 2, endColumn: 22 },
        },
      },
    ]);
    expect(flag).toMatchObject({ ruleId: "wrong-value", message: { text: expect.stringContaining("run.steps") } });
    expect(flag).not.toHaveProperty("locations");
  });

  // https://docs.github.com/actions/reference/workflow-commands-for-github-actions
  test("github: one workflow command a problem, escaped", async () => {
    expect(await check([wrong("a,b.yaml")], "github", { "run.steps": "50%" })).toBe(2);
    const where = `file=${folder}/a%2Cb.yaml,line=3,col=8,title=molt-runner unknown-key`;
    expect(out).toContain(`::error ${where}::unknown key 'sed' in 'run': did you mean 'seed'?`);
    expect(out.at(-1)).toBe(
      "::error title=molt-runner wrong-value::--run.steps must be an integer of at least 1 or null, not '50%25'",
    );
    out = [];
    expect(await check([quickstart], "github")).toBe(0);
    const title = `file=${quickstart},line=11,col=23,title=molt-runner file`;
    expect(out.filter((line) => !line.startsWith(`::notice ${title}::actor.model_name_or_path`))).toEqual([]);
  });

  test("what only plan knows is said, and is no error before a launch", async () => {
    const flags = { "actor.optimizer": "muon", "actor.init": "random" };
    const model = { "actor.model_name_or_path": "recipes/quickstart/model" };
    expect(await check([quickstart], "text", { ...flags, ...model })).toBe(0);
    expect(out[0]).toBe(
      "info: --actor.optimizer muon is planned, not runnable yet: only plan reads it, and a run takes adamw",
    );
    expect(out.at(-1)).toBe(`${quickstart} is not runnable yet: molt-runner plan ${quickstart}`);
    expect(() => loadRecipe(quickstart, { flags, launch: true })).toThrow(
      /optimizer muon is planned, not runnable yet/,
    );
    expect(() => loadRecipe(quickstart, { flags: { "actor.optimizer": "adamw" }, launch: true })).not.toThrow();
  });
});

describe("--explain", () => {
  test("says the value, where it comes from and what is known of the key", () => {
    expect(explainCommand([quickstart], "rollout.max_new_tokens", options("text"))).toBe(0);
    expect(out.join("\n").split("\n")).toEqual([
      expect.stringMatching(/^rollout.max_new_tokens: 8 {2}# recipes\/quickstart.yaml:\d+:19$/),
      "  Longest reply of one turn; null is what remains of data.max_len.",
      "  type      an integer of at least 1 or null, in tokens",
      "  default   null",
      "  flag      --rollout.max_new_tokens",
      "  guardrail replyLength: A reply is shorter than data.max_len, which counts the prompt too.",
      "  metrics   response_length, turn/length",
    ]);
  });

  test("of a flag, a default and a derived value, whatever else is wrong; in JSON", () => {
    const path = wrong("a.yaml");
    explainCommand([path, quickstart], "run.seed", options("json", { "run.seed": "7" }));
    const [first, second] = out.map((line) => JSON.parse(line));
    expect(first).toMatchObject({ key: "run.seed", value: 7, provenance: "--run.seed", default: 42, guardrails: {} });
    expect(second).toMatchObject({ path: quickstart, value: 7, type: "an integer of at least 0" });
    out = [];
    explainCommand([path], "run.name", options("text"));
    expect(out[0]).toMatch(/^run.name: a {2}# default\n.*\n.*\n {2}default {3}the recipe's file name\n/);
    expect(() => explainCommand([path], "run.sed", options("text"))).toThrow("did you mean 'run.seed'?");
  });
});

describe("a secret in the environment", () => {
  const secret = "s3cr3t-planted-0451";
  const reference = "$" + "{env:MOLT_TEST_SECRET}";
  const shown = () => out.join("\n");

  beforeEach(() => void vi.stubEnv("MOLT_TEST_SECRET", secret));
  afterEach(() => vi.unstubAllEnvs());

  /** Every way for a value to be text, and as many for it to be wrong. */
  const right = (path: string) => `extends: ${relative(folder, path)}
data: { input_key: prompt, prompt_dataset: ["${process.cwd()}/recipes/quickstart/prompts.jsonl"] }
vllm: { extra_args: ["--api-key", "${reference}", "--header=Bearer ${reference}"] }
run: { name: "${reference}" }
`;
  const wrongs = [
    `run: { seed: "${reference}", steps: "0${reference}" }`,
    `actor: { init: "${reference}", adam: { betas: ["${reference}", 1] } }`,
    `data: { prompt_probs: ["${reference}"] }`,
    `algo: { advantage: { estimator: "${reference}" } }`,
    `extends: "${reference}.yaml"`,
    `${reference}: 1`,
  ];

  test("is in no report, explanation or resolved recipe, only its reference", async () => {
    const path = write("secret.yaml", right(quickstart));
    expect(loadRecipe(path).recipe.vllm.extra_args).toEqual(["--api-key", secret, `--header=Bearer ${secret}`]);
    for (const format of ["text", "json", "sarif", "github"] as const) await check([path], format);
    for (const key of ["vllm.extra_args", "run.name"]) explainCommand([path], key, options("text"));
    const { recipe, provenance } = loadRecipe(path);
    out.push(resolvedYaml(recipe, provenance));
    expect(shown()).toContain(`--header=Bearer ${reference}`);
    expect(shown()).not.toContain(secret);
  });

  test.each(wrongs)("is in no error: %s", async (line) => {
    const path = write("secret.yaml", `${line}\n`);
    for (const format of ["text", "json", "sarif", "github"] as const) expect(await check([path], format)).toBe(2);
    expect(shown()).toContain(line.includes("extends") || line.startsWith("$") ? "MOLT_TEST_SECRET" : reference);
    expect(shown()).not.toContain(secret);
  });
});

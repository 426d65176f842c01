import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Sampler, type SamplerOptions } from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { deadlineMs } from "../../runner/src/deadline.ts";
import { pythonPath } from "../setup/locate.mjs";
import { step } from "./sampler-step.ts";

/** At each position: log-probabilities of the next token of the text, and of the likeliest. */
interface Scores {
  next: number[];
  top: number[];
}
/** What transformers says: see `sampler_models.py`. */
interface Expected {
  tokens: number[];
  float64: Scores;
  bf16: Scores;
}

const families = ["llama-biases", "qwen2-window-tied", "qwen3", "qwen3-moe"];
const folder = mkdtempSync(join(tmpdir(), "molt-sampler-models-"));

beforeAll(() => {
  const script = fileURLToPath(new URL("sampler_models.py", import.meta.url));
  execFileSync(pythonPath(), [script, folder], { timeout: deadlineMs(150), stdio: ["ignore", "ignore", "pipe"] });
}, deadlineMs(160));
afterAll(() => rmSync(folder, { recursive: true }));

async function open(family: string, options: Pick<SamplerOptions, "dtype" | "plain">) {
  const { decoder, tensors } = readModelFolder(join(folder, family), { weights: "required" });
  const expected: Expected = JSON.parse(readFileSync(join(folder, family, "expected.json"), "utf8"));
  const { config, units } = decoder;
  const sampler = await Sampler.create({ config, units, pageSize: 4, numPages: 64, ...options });
  await sampler.load(tensors);
  return { sampler, expected };
}

/** Scores the text in one step, then token by token, then in pieces beside another sequence; all must agree. */
async function scoresOf(sampler: Sampler, tokens: number[]): Promise<Scores> {
  const whole = (await step(sampler, [{ sequence: 0, tokens, temperature: 0, score: 1 }])).promptLogprobs[0]!;
  expect(whole[0]).toBeNaN();
  const top: number[] = [];
  for (const token of tokens) {
    const { logprobs, promptLogprobs } = await step(sampler, [{ sequence: 1, tokens: [token], temperature: 0 }]);
    expect(promptLogprobs).toEqual([null]);
    top.push(logprobs[0]!);
  }
  await step(sampler, [{ sequence: 2, tokens: tokens.slice(0, 10) }]);
  const mixed = await step(sampler, [
    { sequence: 3, tokens: [1, 2, 3] },
    { sequence: 2, tokens: tokens.slice(10), temperature: 0, score: 1 },
    { sequence: 1, tokens: [5] },
  ]);
  expect(mixed.promptLogprobs[0]).toBeNull();
  expect(mixed.promptLogprobs[1]![0]).toBeNaN();
  for (const sequence of [0, 1, 2, 3]) sampler.free(sequence);
  return { next: [...whole.slice(1)], top: [...top, ...mixed.promptLogprobs[1]!.slice(1), mixed.logprobs[1]!] };
}

/** The truth for what `scoresOf` gives, from one dtype's scores. */
function arranged({ next, top }: Scores): Scores {
  return { next, top: [...top, ...next.slice(10), top.at(-1)!] };
}

function errors(found: Scores, wanted: Scores): number[] {
  const flat = ({ next, top }: Scores) => [...next, ...top];
  return flat(found).map((value, i) => Math.abs(value - flat(wanted)[i]!));
}

const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

describe.each(families)("%s", (family) => {
  it.each([true, false])("scores and decodes as transformers in float64 (plain: %s)", async (plain) => {
    const { sampler, expected } = await open(family, { plain });
    const found = errors(await scoresOf(sampler, expected.tokens), arranged(expected.float64));
    expect(Math.max(...found)).toBeLessThan(2e-4);
    sampler.dispose();
  });

  it.each([true, false])("is as close to float64 in bfloat16 as transformers is (plain: %s)", async (plain) => {
    const { sampler, expected } = await open(family, { dtype: "bfloat16", plain });
    const truth = arranged(expected.float64);
    const found = errors(await scoresOf(sampler, expected.tokens), truth);
    expect(mean(found)).toBeGreaterThan(1e-4); // it is bfloat16 that ran
    expect(mean(found)).toBeLessThan(mean(errors(arranged(expected.bf16), truth)));
    sampler.dispose();
  });

  it("has the checksum of its float32 weights in bfloat16 too", async () => {
    const [a, b] = [await open(family, {}), await open(family, { dtype: "bfloat16" })];
    expect(await b.sampler.checksum()).toBe(await a.sampler.checksum());
    for (const { sampler } of [a, b]) sampler.dispose();
  });
});

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Model, setThreads, Tensor } from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { deadlineMs } from "../../runner/src/deadline.ts";
import { pythonPath } from "../setup/locate.mjs";
import { largestDifference, readTensors } from "./tensors.ts";

interface Scores {
  logp: number[];
  entropy: number[];
}

/** What transformers says, in three dtypes: see `families.py`. The loss is the sum of a · logp + b · entropy. */
interface Expected {
  tokens: number[];
  cu: number[];
  targets: number[];
  a: number[];
  b: number[];
  float64: Scores;
  float32: Scores;
  bf16: Scores;
  inverseFrequencies: number[];
  ropeScale: number;
}

const families = [
  "llama-llama3-biases",
  "llama-linear-tied",
  "qwen2-yarn",
  "qwen2-window-tied",
  "qwen3-yarn-window-biases",
];
const folder = mkdtempSync(join(tmpdir(), "molt-families-"));

beforeAll(async () => {
  await setThreads(1);
  const script = fileURLToPath(new URL("families.py", import.meta.url));
  execFileSync(pythonPath(), [script, folder], { timeout: deadlineMs(150), stdio: ["ignore", "ignore", "pipe"] });
}, deadlineMs(160));
afterAll(() => rmSync(folder, { recursive: true }));

type Gradients = Map<string, Float32Array>;

async function score(name: string, dtype: "float32" | "bfloat16") {
  const { decoder, tensors } = readModelFolder(join(folder, name), { weights: "required" });
  const expected: Expected = JSON.parse(readFileSync(join(folder, name, "expected.json"), "utf8"));
  const { config, units } = decoder;
  const model = await Model.create({ config, units, group: null, trainable: true, dtype, headChunk: 7 });
  await model.load(tensors);
  const { logp, entropy } = await model.forward(
    {
      tokens: Int32Array.from(expected.tokens),
      cu: Int32Array.from(expected.cu),
      targets: Int32Array.from(expected.targets),
      temperatures: new Float32Array(expected.tokens.length).fill(1),
    },
    true,
  );
  const [a, b] = [expected.a, expected.b].map((weights) => Tensor.from(Float32Array.from(weights)));
  await model.backward(a!.mul(logp).add(b!.mul(entropy)).sum());
  const gradients: Gradients = new Map();
  for (const unit of units) for (const { name } of unit.parameters) gradients.set(name, await model.readGradient(name));
  const scores = { logp: [...(await logp.data())], entropy: [...(await entropy.data())] };
  model.dispose();
  return { scores, gradients, expected };
}

const squares = (values: Iterable<number>) => Array.from(values).reduce((sum, value) => sum + value ** 2, 0);
const gaps = (a: ArrayLike<number>, b: ArrayLike<number>) => Array.from(a, (value, i) => value - b[i]!);

/** The error's norm over the truth's, all parameters together. */
function gradientError(gradients: Gradients, truth: Gradients): number {
  const error = [...truth].reduce((sum, [name, want]) => sum + squares(gaps(gradients.get(name)!, want)), 0);
  return Math.sqrt(error / [...truth.values()].reduce((sum, want) => sum + squares(want), 0));
}

describe.each(families)("%s", (name) => {
  it("has the log-probabilities, entropies and gradients of float64 in float32", async () => {
    const { scores, gradients, expected } = await score(name, "float32");
    expect(largestDifference(scores.logp, expected.float64.logp)).toBeLessThan(2e-5);
    expect(largestDifference(scores.entropy, expected.float64.entropy)).toBeLessThan(2e-5);
    expect(largestDifference(scores.logp, expected.float32.logp)).toBeLessThan(2e-5);
    const truth = readTensors(join(folder, name, "float64.safetensors"));
    expect([...gradients.keys()].sort()).toEqual([...truth.keys()].sort());
    for (const [parameter, want] of truth) {
      const scale = Math.max(...want.map(Math.abs));
      // A key's bias turns with its position under rope, so that it counts; a gradient of nothing would prove nothing.
      expect(scale, parameter).toBeGreaterThan(1e-3);
      expect(largestDifference(gradients.get(parameter)!, want) / scale, parameter).toBeLessThan(5e-5);
    }
  });
});

describe("in bf16", () => {
  it("every family is as near to float64 as transformers' own bf16", async () => {
    const errors: Record<string, number[]> = { ours: [], theirs: [], ourGradients: [], theirGradients: [] };
    for (const name of families) {
      const { scores, gradients, expected } = await score(name, "bfloat16");
      const { float64, bf16 } = expected;
      // Eight bits of mantissa, in logits of about 8: a few hundredths a position.
      expect(largestDifference(scores.logp, float64.logp), name).toBeLessThan(0.25);
      expect(largestDifference(scores.logp, float64.logp), name).toBeGreaterThan(1e-4);
      errors.ours!.push(squares(gaps(scores.logp, float64.logp)));
      errors.theirs!.push(squares(gaps(bf16.logp, float64.logp)));
      const truth = readTensors(join(folder, name, "float64.safetensors"));
      errors.ourGradients!.push(gradientError(gradients, truth));
      errors.theirGradients!.push(gradientError(readTensors(join(folder, name, "bf16.safetensors")), truth));
      expect(errors.ourGradients!.at(-1), name).toBeLessThan(0.1);
    }
    const total = (key: string) => errors[key]!.reduce((sum, value) => sum + value, 0);
    expect(total("ours")).toBeLessThan(total("theirs"));
    expect(total("ourGradients")).toBeLessThan(total("theirGradients"));
  });
});

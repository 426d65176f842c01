import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { RunnerError } from "../errors.ts";
import { readDecoder } from "./decoder.ts";

const qwen3 = JSON.parse(readFileSync(new URL("fixtures/qwen3-tied/config.json", import.meta.url), "utf8"));

/** What Qwen publishes for Qwen3-0.6B, written by transformers 4. */
const qwen3Published = {
  architectures: ["Qwen3ForCausalLM"],
  attention_bias: false,
  head_dim: 128,
  hidden_act: "silu",
  hidden_size: 1024,
  intermediate_size: 3072,
  max_window_layers: 28,
  model_type: "qwen3",
  num_attention_heads: 16,
  num_hidden_layers: 28,
  num_key_value_heads: 8,
  rms_norm_eps: 1e-6,
  rope_scaling: null,
  rope_theta: 1000000,
  sliding_window: null,
  tie_word_embeddings: true,
  use_sliding_window: false,
  vocab_size: 151936,
};

function messageFor(changes: Record<string, unknown>): string {
  try {
    readDecoder({ ...qwen3, ...changes }, "m/config.json");
  } catch (error) {
    expect(error).toBeInstanceOf(RunnerError);
    expect((error as RunnerError).exitCode).toBe(2);
    expect((error as RunnerError).position).toEqual({ file: "m/config.json" });
    return (error as Error).message;
  }
  return "no error";
}

describe("readDecoder", () => {
  it("reads what transformers 5 writes", () => {
    expect(readDecoder(qwen3, "config.json").config).toEqual({
      vocabSize: 40,
      hiddenSize: 16,
      intermediateSize: 24,
      numLayers: 2,
      numHeads: 2,
      numKvHeads: 1,
      headDim: 8,
      ropeTheta: 1000000,
      rmsNormEps: 1e-6,
      tieWordEmbeddings: true,
      qkNorm: true,
    });
  });

  it("reads what transformers 4 wrote, and counts the parameters Qwen states", () => {
    const { config, units, family } = readDecoder(qwen3Published, "config.json");
    expect(family).toBe("qwen3");
    expect(config.ropeTheta).toBe(1000000);
    expect(units.map(({ kind }) => kind)).toEqual(["embedding", ...Array(28).fill("layer"), "head"]);
    const sizes = units.flatMap(({ parameters }) => parameters.map(({ shape }) => shape.reduce((a, b) => a * b)));
    // 596,049,920: the total of the published checkpoint's safetensors without the tied head.
    expect(sizes.reduce((a, b) => a + b)).toBe(596_049_920);
  });

  it("describes a layer by role, and the head only when untied", () => {
    const { units } = readDecoder({ ...qwen3, tie_word_embeddings: false }, "config.json");
    expect(units[1]!.parameters.map(({ role }) => role).join(" ")).toBe(
      "input_norm q k v q_norm k_norm o post_norm gate up down",
    );
    expect(units[2]!.parameters.find(({ role }) => role === "down")).toEqual({
      role: "down",
      name: "model.layers.1.mlp.down_proj.weight",
      shape: [16, 24],
      init: { kind: "normal", std: 1 / Math.sqrt(24) / 2 },
      decay: true,
    });
    expect(units[3]!.parameters.map(({ role, name }) => `${role} ${name}`)).toEqual([
      "norm model.norm.weight",
      "head lm_head.weight",
    ]);
    expect(units[3]!.parameters.map(({ init, decay }) => [init, decay])).toEqual([
      [{ kind: "ones" }, false],
      [{ kind: "normal", std: 0.125 }, true],
    ]);
    expect(units[0]!.parameters[0]!.init).toEqual({ kind: "normal", std: 0.5 });
  });

  it.each([
    [{ model_type: "llama" }, 'model_type is "llama"; supported: qwen3'],
    [{ model_type: undefined }, "model_type is undefined; supported: qwen3"],
    [{ model_type: "toString" }, 'model_type is "toString"; supported: qwen3'],
    [{ hidden_act: "gelu" }, 'hidden_act is "gelu", which is not supported: only silu'],
    [{ attention_bias: true }, "attention_bias is true, which is not supported: only attention without biases"],
    [
      { rope_parameters: { rope_type: "yarn", rope_theta: 1e6 } },
      'rope scaling of kind "yarn", which is not supported: only default rotary embeddings',
    ],
    [
      { rope_parameters: undefined, rope_scaling: { type: "linear", factor: 2 } },
      'rope scaling of kind "linear", which is not supported: only default rotary embeddings',
    ],
    [
      { layer_types: ["full_attention", "sliding_attention"] },
      "some layers use a sliding window, which is not supported: only full attention",
    ],
    [
      { layer_types: undefined, use_sliding_window: true },
      "some layers use a sliding window, which is not supported: only full attention",
    ],
    [{ head_dim: undefined }, "head_dim is missing; it must be a positive integer"],
    [{ hidden_size: 16.5 }, "hidden_size is 16.5; it must be a positive integer"],
    [{ num_hidden_layers: 0 }, "num_hidden_layers is 0; it must be a positive integer"],
    [{ rms_norm_eps: "small" }, 'rms_norm_eps is "small"; it must be a positive number'],
    [
      { num_attention_heads: 3, num_key_value_heads: 2 },
      "heads do not fit: num_attention_heads 3, num_key_value_heads 2, head_dim 8",
    ],
  ])("refuses %o", (changes, message) => {
    expect(messageFor(changes)).toBe(message);
  });
});

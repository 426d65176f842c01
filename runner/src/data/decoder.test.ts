import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { RunnerError } from "../errors.ts";
import { parametersOf, readDecoder } from "./decoder.ts";

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

/** What Qwen publishes for Qwen3-30B-A3B. */
const qwen3MoePublished = {
  ...qwen3Published,
  decoder_sparse_step: 1,
  hidden_size: 2048,
  intermediate_size: 6144,
  max_window_layers: 48,
  mlp_only_layers: [],
  model_type: "qwen3_moe",
  moe_intermediate_size: 768,
  norm_topk_prob: true,
  num_attention_heads: 32,
  num_experts: 128,
  num_experts_per_tok: 8,
  num_hidden_layers: 48,
  num_key_value_heads: 4,
  tie_word_embeddings: false,
};

/** What Mistral publishes for Mixtral-8x7B. */
const mixtralPublished = {
  hidden_act: "silu",
  hidden_size: 4096,
  intermediate_size: 14336,
  model_type: "mixtral",
  num_attention_heads: 32,
  num_experts_per_tok: 2,
  num_hidden_layers: 32,
  num_key_value_heads: 8,
  num_local_experts: 8,
  rms_norm_eps: 1e-5,
  rope_theta: 1e6,
  sliding_window: null,
  tie_word_embeddings: false,
  vocab_size: 32000,
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
      // 1e6 ** (-i / 4)
      inverseFrequencies: [1, Math.fround(10 ** -1.5), Math.fround(1e-3), Math.fround(10 ** -4.5)],
      ropeScale: 1,
      windows: [0, 0],
      rmsNormEps: 1e-6,
      tieWordEmbeddings: true,
      qkNorm: true,
    });
  });

  it("reads what transformers 4 wrote, and counts the parameters Qwen states", () => {
    const { config, units, family } = readDecoder(qwen3Published, "config.json");
    expect(family).toBe("qwen3");
    expect(config.inverseFrequencies).toHaveLength(64);
    expect(config.inverseFrequencies[32]).toBe(Math.fround(1e-3));
    expect(units.map(({ kind }) => kind)).toEqual(["embedding", ...Array(28).fill("layer"), "head"]);
    const sizes = units.flatMap(({ parameters }) => parameters.map(({ shape }) => shape.reduce((a, b) => a * b)));
    // 596,049,920: the total of the published checkpoint's safetensors without the tied head.
    expect(sizes.reduce((a, b) => a + b)).toBe(596_049_920);
  });

  it.each([
    // The totals of the published checkpoints' safetensors.
    ["qwen3_moe", qwen3MoePublished, 30_532_122_624],
    ["mixtral", mixtralPublished, 46_702_792_704],
  ])("counts the parameters that the authors of a %s state", (_, published, total) => {
    const sizes = parametersOf(readDecoder(published, "config.json").units).map(({ shape }) => shape);
    expect(sizes.map((shape) => shape.reduce((a, b) => a * b)).reduce((a, b) => a + b)).toBe(total);
  });

  it("describes a mixture's layers: the router last, then the experts in the order of their products", () => {
    const few = { num_hidden_layers: 2, num_experts: 3, num_experts_per_tok: 2 };
    const described = (published: Record<string, unknown>) => {
      const { config, units } = readDecoder({ ...published, ...few }, "config.json");
      const { name, role, shape } = units[2]!.parameters.at(-1)!;
      return { moe: config.moe, router: [role, name, shape], experts: units[2]!.experts!.map(({ name }) => name) };
    };
    const names = (prefix: string, gate: string, up: string, down: string) =>
      [
        `0.${gate}`,
        `0.${up}`,
        `1.${gate}`,
        `1.${up}`,
        `2.${gate}`,
        `2.${up}`,
        `0.${down}`,
        `1.${down}`,
        `2.${down}`,
      ].map((name) => `model.layers.1.${prefix}.experts.${name}.weight`);
    expect(described(qwen3MoePublished)).toEqual({
      moe: { numExperts: 3, expertsPerToken: 2, expertIntermediateSize: 768, normTopkProb: true, layers: [1, 1] },
      router: ["router", "model.layers.1.mlp.gate.weight", [3, 2048]],
      experts: names("mlp", "gate_proj", "up_proj", "down_proj"),
    });
    expect(described(mixtralPublished)).toEqual({
      moe: { numExperts: 3, expertsPerToken: 2, expertIntermediateSize: 14336, normTopkProb: true, layers: [1, 1] },
      router: ["router", "model.layers.1.block_sparse_moe.gate.weight", [3, 4096]],
      experts: names("block_sparse_moe", "w1", "w3", "w2"),
    });
    const { experts } = readDecoder({ ...qwen3MoePublished, ...few }, "config.json").units[1]!;
    expect(experts!.map(({ role, shape, expert }) => [role, shape, expert])).toEqual([
      ...[0, 1, 2].flatMap((expert) => [
        ["expert_gate", [768, 2048], expert],
        ["expert_up", [768, 2048], expert],
      ]),
      ...[0, 1, 2].map((expert) => ["expert_down", [2048, 768], expert]),
    ]);
  });

  it("has the mixtures and windows that transformers makes of a config", () => {
    const read = (published: Record<string, unknown>, changes: Record<string, unknown>) =>
      readDecoder({ ...published, num_hidden_layers: 4, ...changes }, "config.json").config;
    const layers = (changes: Record<string, unknown>) => read(qwen3MoePublished, changes).moe!.layers;
    expect(layers({ decoder_sparse_step: 2 })).toEqual([0, 1, 0, 1]);
    expect(layers({ decoder_sparse_step: 2, mlp_only_layers: [0, 3] })).toEqual([0, 1, 0, 0]);
    expect(layers({ mlp_only_layers: [1] })).toEqual([1, 0, 1, 1]);
    // As transformers 5 writes it.
    const renamed = { num_experts: undefined, num_local_experts: 16, norm_topk_prob: undefined };
    expect(read(qwen3MoePublished, renamed).moe).toMatchObject({ numExperts: 16, normTopkProb: false });
    expect(read(qwen3MoePublished, { sliding_window: 7 }).windows).toEqual([0, 0, 0, 0]);
    const sliding = { use_sliding_window: true, sliding_window: 7 };
    expect(read(qwen3MoePublished, sliding).windows).toEqual([7, 7, 7, 7]);
    expect(read(mixtralPublished, { sliding_window: 7 }).windows).toEqual([7, 7, 7, 7]);
    expect(read(mixtralPublished, {}).windows).toEqual([0, 0, 0, 0]);
  });

  it.each([
    [{ num_experts: 0 }, "num_experts is 0; it must be a positive integer"],
    [{ num_experts: undefined }, "num_local_experts is missing; it must be a positive integer"],
    [{ num_experts_per_tok: 129 }, "num_experts_per_tok is 129, num_experts only 128"],
    [{ mlp_only_layers: [48] }, "mlp_only_layers is [48]; the model has layers 0 to 47"],
    [{ decoder_sparse_step: 0 }, "decoder_sparse_step is 0; it must be a positive integer"],
    [{ norm_topk_prob: 1 }, "norm_topk_prob is 1"],
    [{ moe_intermediate_size: undefined }, "moe_intermediate_size is missing; it must be a positive integer"],
  ])("refuses a mixture with %o", (changes, message) => {
    expect(messageFor({ ...qwen3MoePublished, ...changes })).toBe(message);
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

  it("has the windows of the layers that are named, else of the last ones", () => {
    const windows = (changes: Record<string, unknown>) =>
      readDecoder({ ...qwen3, sliding_window: 5, ...changes }, "config.json").config.windows;
    const named = { layer_types: ["sliding_attention", "full_attention"] };
    expect(windows({ ...named, use_sliding_window: true })).toEqual([5, 0]);
    const byPlace = { layer_types: undefined, use_sliding_window: true, max_window_layers: 1 };
    expect(windows(byPlace)).toEqual([0, 5]);
    expect(windows({ ...byPlace, use_sliding_window: false })).toEqual([0, 0]);
    expect(windows({ ...byPlace, sliding_window: null })).toEqual([0, 0]);
    expect(windows({ ...byPlace, model_type: "llama" })).toEqual([0, 0]);
  });

  it("has the biases and the head size of each family", () => {
    const roles = (changes: Record<string, unknown>) => {
      const { units, config } = readDecoder({ ...qwen3, head_dim: undefined, ...changes }, "config.json");
      const biases = units[1]!.parameters.filter(({ role }) => role.endsWith("_bias"));
      return [config.headDim, config.qkNorm, biases.map(({ role }) => role).join(" ")];
    };
    expect(roles({})).toEqual([128, true, ""]);
    expect(roles({ attention_bias: true })).toEqual([128, true, "q_bias k_bias v_bias o_bias"]);
    expect(roles({ model_type: "qwen2" })).toEqual([8, false, "q_bias k_bias v_bias"]);
    expect(roles({ model_type: "llama" })).toEqual([8, false, ""]);
    expect(roles({ model_type: "llama", mlp_bias: true })).toEqual([8, false, "gate_bias up_bias down_bias"]);
    const { units } = readDecoder({ ...qwen3, model_type: "qwen2" }, "config.json");
    expect(units[1]!.parameters.map(({ role }) => role).join(" ")).toBe(
      "input_norm q q_bias k k_bias v v_bias o post_norm gate up down",
    );
    expect(units[2]!.parameters.find(({ role }) => role === "k_bias")).toEqual({
      role: "k_bias",
      name: "model.layers.1.self_attn.k_proj.bias",
      shape: [8],
      init: { kind: "normal", std: 0 },
      decay: false,
    });
  });

  it.each([
    [{ model_type: "gemma" }, 'model_type is "gemma"; supported: llama, mixtral, qwen2, qwen3, qwen3_moe'],
    [{ model_type: undefined }, "model_type is undefined; supported: llama, mixtral, qwen2, qwen3, qwen3_moe"],
    [{ model_type: "toString" }, 'model_type is "toString"; supported: llama, mixtral, qwen2, qwen3, qwen3_moe'],
    [{ hidden_act: "gelu" }, 'hidden_act is "gelu", which is not supported: only silu'],
    [
      { rope_parameters: { rope_type: "dynamic", factor: 2 } },
      'rope scaling of kind "dynamic", which is not supported: only default, linear, llama3, yarn',
    ],
    [
      { layer_types: ["full_attention", "chunked_attention"] },
      'a layer is of type "chunked_attention", which is not supported: only full or sliding',
    ],
    [{ layer_types: ["full_attention"] }, "layer_types names 1 layers of 2"],
    [
      { layer_types: ["full_attention", "sliding_attention"] },
      "layer_types names sliding_attention, but use_sliding_window is not true",
    ],
    [
      { layer_types: undefined, use_sliding_window: true, max_window_layers: 0, sliding_window: 0.5 },
      "sliding_window is 0.5; it must be a positive integer",
    ],
    [{ vocab_size: undefined }, "vocab_size is missing; it must be a positive integer"],
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

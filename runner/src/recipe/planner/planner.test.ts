import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Resolution } from "../resolve.ts";
import type { Recipe } from "../schema.ts";
import { type ModelShape, planRecipe, planTable, readModelShape, readPolicyShape } from "./index.ts";
import { smallestChange, trainerChanges, withSetting } from "./smallest-change.ts";

const fixture = (name: string) => JSON.parse(readFileSync(new URL(`fixtures/${name}`, import.meta.url), "utf8"));

type Flags = Record<string, string | number | boolean>;

function recipeOf(flags: Flags): Recipe {
  const words = Object.fromEntries(Object.entries(flags).map(([key, value]) => [key, String(value)]));
  const resolution = new Resolution("actor: {model_name_or_path: m}\ntrain: {agent_path: a.ts}\n", "/r/x.yaml", words, {
    readFile: () => undefined,
    environment: {},
  });
  expect(resolution.judge("run").filter(({ severity, code }) => severity === "error" && code !== "guardrail")).toEqual(
    [],
  );
  return resolution.recipe;
}

const shapeOf = (config: object) => readModelShape("/m", () => JSON.stringify(config));
const known = (name: string) => readModelShape(`/models/${name}`, () => undefined);
const plan = (flags: Flags, model: ModelShape) => planRecipe(recipeOf(flags), model, { rows: null, verb: "run" });
const onGpus: Flags = {
  "run.device": "H100",
  "fsdp.param_dtype": "bf16",
  "engine.dtype": "bf16",
  "engine.kind": "vllm",
  "vllm.sync_backend": "nccl",
  "rollout.turn_timeout": 1500,
  "rollout.timeout": 1800,
  "actor.devices_per_node": 8,
};

describe("a model's shape", () => {
  const shapes = fixture("shapes.json") as Record<string, { config: object; total: number; experts: number }>;

  it.each(Object.entries(shapes))("%s has the parameters that transformers counts", (_, { config, total, experts }) => {
    expect(shapeOf(config).parameters).toMatchObject({ total, experts });
  });

  const mixture = {
    ...{ model_type: "qwen3_moe", num_hidden_layers: 10, hidden_size: 8, num_attention_heads: 2, vocab_size: 16 },
    ...{ intermediate_size: 8, num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 4 },
  };

  // The model cards, in billions: total and active.
  it.each([
    ["Qwen3-4B", 4.0, 4.0],
    ["Qwen3-30B-A3B", 30.5, 3.3],
    ["Qwen3-235B-A22B", 235, 22],
    ["DeepSeek-V3", 671, 37],
    ["SmolLM2-135M-Instruct", 0.135, 0.135],
  ])("%s has the published %d B, %d B active", (name, total, active) => {
    const { parameters } = known(name);
    expect(Math.abs(parameters.total / 1e9 / total - 1)).toBeLessThan(0.01);
    expect(Math.abs(parameters.active / 1e9 / active - 1)).toBeLessThan(0.02);
  });

  it.each([
    [{ model_type: "gpt2" }, /"gpt2".*the planner knows llama, qwen2, qwen3, qwen3_moe, mixtral, deepseek_v3/],
    [{ model_type: "llama", num_hidden_layers: 2 }, /hidden_size is missing/],
    [null, /model_type is undefined/],
    [{ ...mixture, num_experts_per_tok: 9 }, /num_experts_per_tok is 9.*at most 8/],
    [{ ...mixture, n_shared_experts: "x" }, /n_shared_experts is "x"/],
    [{ ...mixture, first_k_dense_replace: -1 }, /first_k_dense_replace is -1/],
  ])("refuses %j", (config, message) => {
    expect(() => shapeOf(config as object)).toThrow(message);
  });

  it.each([
    [{ decoder_sparse_step: 2 }, 5],
    [{ decoder_sparse_step: 2, first_k_dense_replace: 3, mlp_only_layers: [5, 5, 6, 99, "x"] }, 3],
    [{ first_k_dense_replace: 12 }, 0],
    // A slip of the finger in an open editor: counted, not listed.
    [{ num_hidden_layers: 1e9, mlp_only_layers: [0] }, 1e9 - 1],
  ])("with %j has the layers of experts that it says", (more, layers) => {
    expect(shapeOf({ ...mixture, ...more }).expertLayers).toBe(layers);
    expect(planTable(plan({}, shapeOf({ ...mixture, ...more })))).not.toMatch(/NaN|undefined/);
  });

  it("refuses what is no JSON, and a folder that is not there and named after no known model", () => {
    expect(() => readModelShape("/m", () => "{")).toThrow(/not JSON/);
    expect(() => known("my-model")).toThrow(/no known model's/);
  });
});

describe("memory", () => {
  it("of a dense model on four ranks is what one computes by hand", () => {
    const flags = { ...onGpus, "actor.devices_per_node": 4, "data.max_len": 16384, "engine.count": 4 };
    const { trainer, engine } = plan(flags, known("Qwen3-4B"));
    const parameters = 4_022_468_096;
    // Queries, keys, values, attention's output, the layer's, gate and up; SiLU and product; two float32 norms.
    const insides = 2 * (32 * 128 + 2 * 8 * 128 + 32 * 128 + 2560 + 2 * 9728) + 2 * 2 * 9728 + 2 * 4 * 2560;
    expect(trainer!.parts).toEqual({
      weights: parameters,
      gradients: parameters,
      optimizer: 2 * parameters,
      reference: 0,
      critic: 0,
      "gathered layers": 2 * 2 * 151936 * 2560,
      // Of the head: as autograd gives them, bf16, and what is reduced, float32.
      "unit's gradients": (2 + 4) * 151936 * 2560,
      activations: 16384 * (36 * 4 * 2560 + 2 * insides),
      "logits chunk": 1024 * 151936 * 4 * 3,
    });
    const cache = 0.9 * 80 * 2 ** 30 - 2 * parameters;
    expect(engine!.parts).toEqual({ weights: 2 * parameters, cache });
    expect(engine!.sequences.longest).toBe(Math.floor(cache / (2 * 36 * 2 * 8 * 128) / 16384));
  });

  it("of a reference that is another model is that one's", () => {
    const recipe = recipeOf({ ...onGpus, "algo.kl.init_coef": 1, "ref.model_name_or_path": "Qwen3-30B-A3B" });
    const shape = readPolicyShape(
      { ...recipe, actor: { ...recipe.actor, model_name_or_path: "Qwen3-4B" } },
      "/r",
      () => undefined,
    );
    // The model cards' 4.0 and 30.5 billion parameters, float32, over eight ranks.
    const { parts } = planRecipe(recipe, shape, { rows: null, verb: "run" }).trainer!;
    expect(parts.weights! / 2e9).toBeCloseTo(1.005, 2);
    expect(parts.reference! / 15.25e9).toBeCloseTo(1, 2);
  });

  it("of adapters is their own gradients and moments, over weights that are also the reference", () => {
    const flags: Flags = { ...onGpus, "actor.lora.rank": 16, "algo.kl.init_coef": 0.1 };
    const whole = plan({ ...onGpus }, known("Qwen3-4B")).trainer!;
    // peft.get_peft_model of Qwen3-4B, r=16 on all linear layers: print_trainable_parameters says 33,030,144.
    const factors = (4 * 33_030_144) / 8;
    for (const ref of [null, "elsewhere"]) {
      const other: Flags = ref ? { "ref.model_name_or_path": ref } : {};
      const { parts } = plan({ ...flags, ...other }, known("Qwen3-4B")).trainer!;
      expect(parts).toMatchObject({
        weights: whole.parts.weights! + factors,
        gradients: factors,
        optimizer: 2 * factors,
        reference: ref ? whole.parts.weights : 0,
        activations: whole.parts.activations,
      });
    }
    const reduced = (more: Flags) => plan({ ...onGpus, ...more }, known("Qwen3-4B")).time.traffic["reduce-scatter"]!;
    // Each of 36 layers: rank times (2,560 in and 4,096 out, then 2,560 and 1,024), of 4,022,468,096 parameters.
    const share = (36 * 16 * (2560 + 4096 + 2560 + 1024)) / 4_022_468_096;
    const onlyTwo: Flags = { "actor.lora.rank": 16, "actor.lora.target_modules": "[q_proj, v_proj]" };
    expect(reduced(onlyTwo) / reduced({})).toBeCloseTo(share, 9);
  });

  it("of a mixture has the layer that is summed beside the one that is differentiated", () => {
    const { trainer, model } = plan(onGpus, known("Qwen3-30B-A3B"));
    // One of 48 layers: 128 experts of three 2,048 x 768, bf16 and float32, and float32 of the one after it.
    const experts = 128 * 3 * 2048 * 768;
    const layer = model.parameters.layer + experts;
    expect(trainer!.parts["unit's gradients"]).toBeCloseTo(layer * (2 + 4 + 4), 0);
  });

  it("of shared rows has the keys and values that a rank's pieces see", () => {
    const activations = (ranks: number) =>
      plan({ ...onGpus, "fsdp.cp_size": ranks, "actor.gradient_checkpoint": "selective" }, known("Qwen3-4B")).trainer!
        .parts.activations!;
    // Eight ranks' pieces end at (8.5 of 8): bf16 keys and values of 8 heads of 128, of 36 layers and two insides.
    const seen = (8 + 0.5) * 2 * 2 * 8 * 128 * (36 + 2);
    expect(activations(8) - activations(1)).toBeCloseTo(16384 * seen, 0);
  });

  // Kilobytes a token in bf16: Zhao et al., "Insights into DeepSeek-V3", table 1.
  it.each([
    ["DeepSeek-V3", known("DeepSeek-V3"), 70.272],
    [
      "Qwen2.5-72B",
      shapeOf({
        ...{ model_type: "qwen2", vocab_size: 152064, hidden_size: 8192, intermediate_size: 29568 },
        ...{ num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8 },
      }),
      327.68,
    ],
  ])("of a token in the cache of %s is as published", (_, model, kilobytes) => {
    const { engine } = plan({ "run.device": "H100", "engine.dtype": "bf16", "engine.cache_tokens": 4096 }, model);
    expect(engine!.parts.cache / 4096 / 1000).toBeCloseTo(kilobytes, 3);
  });

  // Peaks of the native core's resident memory over forward, backward and AdamW of 1,536 tokens, without that of the
  // process before it (MB, two-core machine).
  it.each<[string, string, number]>([
    ["float32", "full", 2650],
    ["float32", "none", 4485],
    ["bf16", "full", 2588],
  ])("of SmolLM2-135M's trainer in %s, checkpoints %s, is within 3% of the %d MB measured", (dtype, kept, measured) => {
    const rows = { "data.max_len": 64, "rollout.batch_size": 24, "rollout.n_samples_per_prompt": 1 };
    const flags = { ...rows, "fsdp.param_dtype": dtype, "actor.gradient_checkpoint": kept };
    const { trainer } = plan(flags, known("SmolLM2-135M"));
    expect(Math.abs(trainer!.total / 1e6 / measured - 1)).toBeLessThan(0.03);
  });

  it.each<[string, Flags, Record<string, number>]>([
    ["a reference", { "algo.kl.init_coef": 0.1 }, { reference: 4 }],
    ["a critic", { "algo.advantage.estimator": "gae" }, { critic: 16 }],
    ["Muon", { "actor.optimizer": "muon" }, { optimizer: 4 }],
    ["an optimizer on the host", { "fsdp.offload": "optimizer" }, { optimizer: 0, weights: 4 }],
    ["everything on the host", { "fsdp.offload": "full" }, { optimizer: 0, weights: 0, gradients: 0 }],
    ["no checkpoints: gathered weights stay", { "actor.gradient_checkpoint": "none" }, { "gathered layers": 2 * 8 }],
    ["gradients reduced once: whole ones beside the slice", { "fsdp.defer_reduce": true }, { gradients: 4 * 8 + 4 }],
    [
      "the critic's too",
      { "fsdp.defer_reduce": true, "algo.advantage.estimator": "gae" },
      { critic: 16 + 4 * 8, gradients: 4 * 8 + 4 },
    ],
  ])("of %s, in bytes a parameter and rank", (_, flags, bytes) => {
    const { trainer, model } = plan({ ...onGpus, ...flags }, known("Qwen3-4B"));
    for (const [part, each] of Object.entries(bytes)) {
      expect(trainer!.parts[part]! / (model.parameters.total / 8), part).toBeCloseTo(each, 9);
    }
  });
});

describe("traffic", () => {
  it("of eight ranks is what one computes by hand", () => {
    const flags = {
      ...onGpus,
      "data.max_len": 1024,
      "data.mean_len": 512,
      "rollout.batch_size": 16,
      "fsdp.ep_size": 4,
    };
    const { time, layout } = plan(
      { ...flags, "train.max_tokens_per_device": 2048, "rollout.n_samples_per_prompt": 8 },
      known("Qwen3-30B-A3B"),
    );
    // 128 rows of 512 tokens on 8 ranks: 8,192 tokens, four microbatches.
    expect(layout).toMatchObject({ rankTokens: 8192, microbatches: 4 });
    const [total, experts] = [30_532_122_624, 28_991_029_248];
    const shared = ((total - experts) * 7) / 8 + (experts / 4) * (1 / 2);
    expect(time.traffic["all-gather"]).toBeCloseTo(shared * 2 * 4 * 2, 0);
    expect(time.traffic["reduce-scatter"]).toBeCloseTo(shared * 4 * 4, 0);
    // There and back, in four passes, bf16, to three of four: eight experts in each of 48 layers.
    expect(time.traffic["all-to-all"]).toBeCloseTo((2 * 4 * 8192 * 48 * 8 * 2048 * 2 * 3) / 4, 0);
    expect(time.traffic["weight sync"]).toBe(2 * total);
  });
});

interface Point {
  name: string;
  calibrates: boolean;
  seconds: number;
  tokensPerSecond?: number;
  config?: object;
  model?: string;
  flags: Flags;
}

describe("published steps", () => {
  const { points } = fixture("published.json") as { points: Point[] };
  const planned = ({ flags, config, model }: Point, more: Flags = {}) =>
    plan({ ...onGpus, "launcher.kind": "slurm", ...flags, ...more }, config ? shapeOf(config) : known(model!));

  it.each(points)("$name: estimated within a factor of 1.5, of 1.25 where the constants are set by it", (point) => {
    const { time } = planned(point);
    const ratio = time.step / point.seconds;
    const most = point.calibrates ? 1.25 : 1.5;
    expect(Math.max(ratio, 1 / ratio)).toBeLessThan(most);
    // The rows are those of the published tokens, so that the rate is off by the same factor.
    if (point.tokensPerSecond) expect(time.tokensPerSecond * ratio).toBeCloseTo(point.tokensPerSecond, 0);
  });

  it.each(points)("$name: its trainer and its engines fit, as they did", (point) => {
    expect(planned(point).findings).toEqual([]);
  });

  it("a layout for 32K by context parallel costs about 30% of training on 16K work", () => {
    const point = points.find(({ tokensPerSecond }) => tokensPerSecond)!;
    const for32K = planned(point, { "fsdp.cp_size": 8, "train.max_tokens_per_device": 32768 / 8 });
    expect(for32K.time.train / planned(point).time.train).toBeCloseTo(1.3, 1);
  });

  it("dense 4B trains and samples on one node, of whose step nothing is published", () => {
    const flags = { ...onGpus, "actor.devices_per_node": 4, "engine.count": 4, "data.max_len": 16384 };
    const made = plan(flags, known("Qwen3-4B"));
    expect(made.placement).toBe("4 ranks, 4 engines of 1 device, on 1 node");
    expect(made.findings).toEqual([]);
  });

  it("a 700B mixture at ep_size 256 fits as in the original's recipe: 16K by cp_size 16, AdamW on the host", () => {
    const trainer = { "actor.num_nodes": 32, "fsdp.ep_size": 256, "fsdp.cp_size": 16, "fsdp.offload": "optimizer" };
    const engine = { "vllm.tensor_parallel_size": 32, "vllm.gpu_memory_utilization": 0.85 };
    const rows = { "data.max_len": 16384, "train.max_tokens_per_device": 1024, "launcher.kind": "slurm" };
    const made = plan({ ...onGpus, ...trainer, ...engine, ...rows }, known("DeepSeek-V3"));
    expect(made.findings).toEqual([]);
    // Two float32 moments of 671 billion parameters on 256 ranks.
    expect(made.trainer!.offloaded).toBeCloseTo((8 * 671_026_404_352) / 256, 0);
  });

  it("the quickstart's step on a CPU, measured at 0.2 s, is estimated within a factor of 3", () => {
    const flags = { "data.max_len": 64, "rollout.max_new_tokens": 8, "rollout.max_turns": 1, "rollout.batch_size": 32 };
    const { time } = plan(flags, known("quickstart-warmup-model"));
    expect(time.step).toBeGreaterThan(0.2 / 3);
    expect(time.step).toBeLessThan(0.2 * 3);
  });
});

describe("time", () => {
  const base = {
    ...onGpus,
    "data.max_len": 16384,
    "fsdp.ep_size": 8,
    "engine.count": 4,
    "vllm.tensor_parallel_size": 2,
  };
  const model = known("Qwen3-30B-A3B");

  it("adds up where nothing overlaps, and is the longer phase's where staleness lets them", () => {
    const { time: strict } = plan({ ...base, "train.max_staleness": 0 }, model);
    expect(strict.step).toBeCloseTo(strict.train + strict.generate + strict.sync, 9);
    const { time } = plan(base, model);
    expect(time.step).toBeCloseTo(Math.max(time.train, time.generate) + time.sync, 9);
  });

  it.each<[string, Flags, "train" | "generate", "less" | "more"]>([
    ["drafted tokens", { "vllm.mtp_num_speculative_tokens": 1 }, "generate", "less"],
    ["replicas", { "vllm.data_parallel_size": 2, "vllm.enable_expert_parallel": true }, "generate", "less"],
    ["pipeline stages", { "vllm.pipeline_parallel_size": 2 }, "generate", "less"],
    ["fewer in flight", { "rollout.max_in_flight": 64, "rollout.batch_size": 128 }, "generate", "more"],
    [
      "prompts computed again",
      { "rollout.max_new_tokens": 512, "vllm.enable_prefix_caching": false },
      "generate",
      "more",
    ],
    ["an offloaded optimizer", { "fsdp.offload": "optimizer" }, "train", "more"],
    ["a reference", { "algo.kl.init_coef": 0.1 }, "train", "more"],
    ["a critic", { "algo.advantage.estimator": "gae" }, "train", "more"],
    ["no recomputation", { "actor.gradient_checkpoint": "none" }, "train", "less"],
    ["more ranks", { "actor.num_nodes": 2 }, "train", "less"],
  ])("of %s", (_, flags, phase, change) => {
    const without =
      Object.keys(flags).length > 1 ? { ...base, ...Object.fromEntries([Object.entries(flags)[0]!]) } : base;
    const plain =
      change === "more" && "rollout.max_in_flight" in flags ? { ...base, "rollout.batch_size": 128 } : without;
    const before = plan(phase === "generate" && change === "less" ? base : plain, model).time[phase];
    const after = plan({ ...base, ...flags }, model).time[phase];
    if (change === "less") expect(after).toBeLessThan(before);
    else expect(after).toBeGreaterThan(before);
  });
});

describe("placement", () => {
  it.each<[string, Flags, string]>([
    [
      "ranks and engines of one node",
      { "actor.devices_per_node": 4, "engine.count": 4 },
      "4 ranks, 4 engines of 1 device, on 1 node",
    ],
    [
      "engines over nodes of their own",
      { "actor.num_nodes": 32, "vllm.tensor_parallel_size": 32, "launcher.kind": "slurm" },
      "256 ranks, 1 engine of 32 devices, on 36 nodes",
    ],
    [
      "what a launcher has not got",
      { "engine.count": 2 },
      "8 ranks, 2 engines of 1 device, on 2 nodes; launcher.kind local has one: take slurm or ray",
    ],
    [
      "few ranks that are to be on two nodes",
      { "actor.num_nodes": 2, "actor.devices_per_node": 1, "launcher.kind": "ray" },
      "2 ranks, 1 engine of 1 device, on 2 nodes",
    ],
    ["a CPU", { "run.device": "cpu", "actor.devices_per_node": 2 }, "2 ranks, 1 engine of 1 device, on 1 node"],
  ])("of %s", (_, flags, processes) => {
    expect(plan({ ...onGpus, ...flags }, known("Qwen3-4B")).placement).toBe(processes);
  });

  it("says that vLLM's own words are not planned, and not what they are: one may be a key", () => {
    const made = plan({ ...onGpus, "vllm.extra_args": "--api-key,hunter2" }, known("Qwen3-4B"));
    expect(planTable(made)).toContain("vllm.extra_args not planned");
    expect(JSON.stringify(made)).not.toContain("hunter2");
  });
});

describe("findings", () => {
  it("name the nearest size that divides experts and heads", () => {
    const flags = { ...onGpus, "actor.num_nodes": 32, "fsdp.ep_size": 256, "vllm.tensor_parallel_size": 48 };
    const found = plan({ ...flags, "launcher.kind": "slurm" }, known("Qwen3-235B-A22B")).findings;
    expect(found.map(({ severity, keys, settings }) => [severity, keys[0], settings])).toEqual([
      ["error", "fsdp.ep_size", [{ key: "fsdp.ep_size", value: 128 }]],
      ["error", "vllm.tensor_parallel_size", [{ key: "vllm.tensor_parallel_size", value: 32 }]],
    ]);
    const [dense] = plan({ ...onGpus, "fsdp.ep_size": 8 }, known("Qwen3-4B")).findings;
    expect(dense!.message).toBe("fsdp.ep_size (8) must divide the model's 0 experts: try 1");
  });

  it("refuse what is of mixtures in a dense model, and adapters of experts in a mixture", () => {
    const mixtures = {
      "train.routing_replay": "true",
      "actor.aux_loss_coef": 0.001,
      "actor.freeze_moe_router": "true",
    };
    const dense = plan({ ...onGpus, ...mixtures }, known("Qwen3-4B")).findings;
    expect(dense.map(({ severity, settings }) => [severity, settings])).toEqual([
      ["error", [{ key: "train.routing_replay", value: false }]],
      ["error", [{ key: "actor.aux_loss_coef", value: 0 }]],
      ["error", [{ key: "actor.freeze_moe_router", value: false }]],
    ]);
    expect(dense[0]!.message).toBe("train.routing_replay is of mixtures of experts, and the model is dense: try false");
    const onMixture = (flags: Flags) =>
      plan({ ...onGpus, ...mixtures, "actor.num_nodes": 8, "fsdp.ep_size": 8, ...flags }, known("Qwen3-30B-A3B"))
        .findings;
    expect(onMixture({})).toEqual([]);
    const adapted = { "actor.lora.rank": 8, "actor.lora.target_modules": "q_proj,up_proj" };
    expect(onMixture(adapted)[0]).toMatchObject({
      severity: "error",
      settings: [{ key: "actor.lora.target_modules", value: ["q_proj"] }],
    });
    expect(onMixture({ ...adapted, "actor.lora.target_modules": "q_proj,v_proj" })).toEqual([]);
  });

  it("say by how much it is too much, and the smallest change", () => {
    const flags = { ...onGpus, "run.device": "L40S", "engine.count": 4, "vllm.tensor_parallel_size": 4 };
    const [found, ...others] = plan({ ...flags, "fsdp.ep_size": 8 }, known("Qwen3-30B-A3B")).findings;
    expect(others).toEqual([]);
    expect(found).toMatchObject({ severity: "error", rule: "memory" });
    expect(found!.message).toMatch(
      /^the trainer needs 77\.\d GB of 44\.5 GB on each L40S \(optimizer 30\.5 GB, weights /,
    );
    expect(found!.message).toMatch(
      /fits is train\.max_tokens_per_device 8192 \(not 16384\), fsdp\.offload optimizer \(not none\)$/,
    );
  });

  it("of an engine that holds no row ask for more devices, on vLLM, or for fewer sequences", () => {
    const large = plan({ ...onGpus, "actor.num_nodes": 8, "fsdp.ep_size": 64 }, known("Qwen3-235B-A22B"));
    const vllm = large.findings.find(({ message }) => message.startsWith("an engine needs 47"));
    // 470 GB of weights: eight of 77 GB hold them and a cache.
    expect(vllm!.settings).toEqual([{ key: "vllm.tensor_parallel_size", value: 8 }]);
    const cpu = { "engine.cache_tokens": 2 ** 40, "data.max_len": 1024 };
    const [embedded] = plan(cpu, known("SmolLM2-135M")).findings;
    expect(embedded).toMatchObject({ severity: "warning", settings: [{ key: "engine.cache_tokens" }] });
  });

  it("warn of a sync by disk on GPUs: float32, written once and read by each engine", () => {
    const flags = { ...onGpus, "fsdp.ep_size": 8, "engine.count": 4, "vllm.sync_backend": "directory" };
    expect(plan(flags, known("Qwen3-30B-A3B")).findings).toMatchObject([
      {
        severity: "warning",
        rule: "syncByDisk",
        message:
          "vllm.sync_backend directory writes 122 GB to disk each time, which 4 engines then read: " +
          "take nccl, which broadcasts",
        settings: [{ key: "vllm.sync_backend", value: "nccl" }],
      },
    ]);
    expect(plan(flags, known("SmolLM2-135M")).findings.map(({ rule }) => rule)).not.toContain("syncByDisk");
    const onCpu = { "engine.kind": "vllm", "run.device": "cpu", "data.max_len": 1024 };
    expect(plan(onCpu, known("Qwen3-4B")).findings.map(({ rule }) => rule)).not.toContain("syncByDisk");
  });

  it("warn of a longest reply that outlasts the deadlines of its call and its episode", () => {
    const flags = { ...onGpus, "actor.devices_per_node": 4, "engine.count": 4, "data.max_len": 16384 };
    const late = (more: Flags) => plan({ ...flags, ...more }, known("Qwen3-4B")).findings;
    const { tokenSeconds } = plan(flags, known("Qwen3-4B")).time;
    const seconds = Math.ceil(16384 * tokenSeconds);
    // An H100 reads the weights alone in 2.4 ms at its full 3.35 TB/s.
    expect(tokenSeconds).toBeGreaterThan(0.0024);
    const [found, ...others] = late({ "rollout.turn_timeout": 30, "rollout.timeout": 3600 });
    expect(others).toEqual([]);
    expect(found).toMatchObject({ severity: "warning", rule: "replySeconds" });
    expect(found!.message).toContain(
      `a reply of 16384 tokens takes about ${seconds} s by the plan, above rollout.turn_timeout (30): try `,
    );
    const [{ key, value }] = found!.settings as [{ key: string; value: number }];
    expect(late({ "rollout.timeout": 3600, [key]: value })).toEqual([]);
    const [both] = late({ "rollout.turn_timeout": 30, "rollout.timeout": 40 });
    expect(both!.message).toContain("above rollout.turn_timeout (30) and rollout.timeout (40): try ");
    expect(late({ "rollout.turn_timeout": 30, "rollout.max_new_tokens": 256 })).toEqual([]);
  });

  it("count the host's memory", () => {
    const flags = { ...onGpus, "fsdp.offload": "full", "vllm.tensor_parallel_size": 32, "fsdp.ep_size": 8 };
    const [found] = plan(flags, known("DeepSeek-V3")).findings;
    expect(found!.message).toMatch(/of the host of each H100: the smallest change that fits is .*actor\.num_nodes 8/);
  });

  it("are right: what the smallest change sets fits, and nothing does where there is none", () => {
    const sizes = fc.record({
      "run.device": fc.constantFrom("H100", "B200", "L40S", "A100"),
      "fsdp.param_dtype": fc.constantFrom("bf16", "float32"),
      "actor.devices_per_node": fc.constantFrom(1, 4, 8),
      "actor.num_nodes": fc.constantFrom(1, 2, 16),
      "actor.gradient_checkpoint": fc.constantFrom("full", "selective", "none"),
      "data.max_len": fc.constantFrom(2048, 16384, 131072),
      "rollout.batch_size": fc.integer({ min: 1, max: 200 }),
      "train.max_tokens_per_device": fc.constantFrom(16384, 131072),
      "train.updates_per_batch": fc.constantFrom(1, 4),
      "engine.count": fc.integer({ min: 1, max: 9 }),
    });
    const names = fc.constantFrom("Qwen3-4B", "Qwen3-30B-A3B", "Qwen3-235B-A22B", "DeepSeek-V3");
    const check = (flags: Flags, name: string) => {
      const recipe = recipeOf(flags);
      const model = known(name);
      const made = planRecipe(recipe, model, { rows: null, verb: "sft" });
      const numbers = JSON.stringify(made, (_, value) =>
        Number.isFinite(value) || typeof value !== "number" ? value : "bad",
      );
      expect(numbers).not.toContain('"bad"');
      expect(
        planTable(made)
          .split("\n")
          .every((line) => line.length <= 100),
      ).toBe(true);
      const fits = (changed: Recipe) => {
        const again = planRecipe(changed, model, { rows: null, verb: "sft" });
        return again.findings.every(({ rule }) => rule !== "memory");
      };
      if (fits(recipe)) return;
      const isRightTrainer = (changed: Recipe) => {
        const { trainer } = planRecipe(changed, model, { rows: null, verb: "sft" });
        return trainer!.total <= trainer!.available && trainer!.offloaded <= trainer!.host;
      };
      const change = smallestChange(recipe, trainerChanges(recipe, model), isRightTrainer);
      if (change) {
        expect(fits(change.reduce(withSetting, recipe))).toBe(true);
        // None of it can be left out.
        const holdsRow = ({ train, fsdp, data }: Recipe) => train.max_tokens_per_device * fsdp.cp_size >= data.max_len;
        const fewer = change.map((left) => change.filter((one) => one !== left).reduce(withSetting, recipe));
        expect(fewer.filter((changed) => holdsRow(changed) && isRightTrainer(changed))).toEqual([]);
      } else expect(made.findings.at(-1)!.message).toContain("no layout of this model fits it");
    };
    fc.assert(fc.property(sizes, names, check), { numRuns: 10 });
  });
});

import { expect, test } from "vitest";
import type { Recipe } from "../recipe/index.ts";
import { adapterConfig, adapterUnits, adaptUnits } from "./adapters.ts";
import { readDecoder } from "./decoder.ts";

// A Qwen2: its biases and norms never have an adapter.
const { units } = readDecoder(
  {
    model_type: "qwen2",
    vocab_size: 10,
    hidden_size: 8,
    intermediate_size: 12,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 1,
  },
  "config.json",
);
const recipe = (rank: number, ...target_modules: Recipe["actor"]["lora"]["target_modules"]) =>
  ({ actor: { model_name_or_path: "base", lora: { rank, alpha: 8, target_modules } } }) as Recipe;

test("the targeted projections have peft's factors, every unit is frozen beside them", () => {
  const adapted = adaptUnits(units, recipe(2, "k_proj", "down_proj"));
  expect(adapted.map(({ adapters }) => adapters!.scale)).toEqual([4, 4, 4]);
  const found = adapterUnits(adapted).map(({ parameters }) => parameters.map(({ name, shape }) => [name, shape]));
  // Shapes and names as peft.get_peft_model_state_dict gives them.
  const layer = "base_model.model.model.layers.0";
  expect(found).toEqual([
    [],
    [
      [`${layer}.self_attn.k_proj.lora_A.weight`, [2, 8]],
      [`${layer}.self_attn.k_proj.lora_B.weight`, [4, 2]],
      [`${layer}.mlp.down_proj.lora_A.weight`, [2, 12]],
      [`${layer}.mlp.down_proj.lora_B.weight`, [8, 2]],
    ],
    [],
  ]);
  expect(adapterConfig(recipe(2, "k_proj"))).toMatchObject({ r: 2, lora_alpha: 8, target_modules: ["k_proj"] });
});

test("rank 0 leaves the units as they are", () => {
  expect(adaptUnits(units, recipe(0, "k_proj"))).toBe(units);
});

test("a mixture's attention has adapters, its experts are refused", () => {
  const mixture = readDecoder(
    {
      model_type: "mixtral",
      vocab_size: 10,
      hidden_size: 8,
      intermediate_size: 12,
      num_hidden_layers: 1,
      num_attention_heads: 2,
      num_local_experts: 2,
      num_experts_per_tok: 1,
    },
    "config.json",
  ).units;
  const roles = adaptUnits(mixture, recipe(2, "q_proj"))[1]!.adapters!.parameters.map(({ role }) => role);
  expect(roles).toEqual(["q_lora_A", "q_lora_B"]);
  expect(() => adaptUnits(mixture, recipe(2, "q_proj", "up_proj"))).toThrow(
    "actor.lora.target_modules has up_proj: a mixture's experts get no adapters",
  );
});

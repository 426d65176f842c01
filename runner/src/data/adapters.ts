/** Low-rank adapters (LoRA, arXiv 2106.09685), named and laid out as peft's. */
import type { ParameterDescription, ParameterInit, UnitDescription } from "molt-native";
import { usageError } from "../errors.ts";
import type { Recipe } from "../recipe/index.ts";

const attention = ["q_proj", "k_proj", "v_proj", "o_proj"];

/** The units with an adapter on each targeted projection and all else frozen; as they are where the rank is 0. */
export function adaptUnits(units: UnitDescription[], { actor }: Recipe): UnitDescription[] {
  const { rank, alpha, target_modules: targets } = actor.lora;
  if (rank === 0) return units;
  const other = targets.find((module) => !attention.includes(module));
  if (other && units.some(({ experts }) => experts)) {
    const fix = `set actor.lora.target_modules to [${attention.join(", ")}] or fewer of them`;
    throw usageError(`actor.lora.target_modules has ${other}: a mixture's experts get no adapters`, { fix });
  }
  const isTarget = ({ name }: ParameterDescription) => targets.some((module) => name.endsWith(`.${module}.weight`));
  return units.map((unit) => {
    const parameters = unit.parameters.filter(isTarget).flatMap((weight) => factorsOf(weight, rank));
    return { ...unit, adapters: { scale: alpha / rank, parameters } };
  });
}

/** B starts at 0, so that the policy starts as its base; A as torch's linear layers do. */
function factorsOf({ role, name, shape }: ParameterDescription, rank: number): ParameterDescription[] {
  const [outputs, inputs] = shape as [number, number];
  const factor = (kind: string, size: number[], init: ParameterInit) => {
    const factorName = `base_model.model.${name.replace(/weight$/, kind)}.weight`;
    return { role: `${role}_${kind}`, name: factorName, shape: size, init, decay: true };
  };
  return [
    factor("lora_A", [rank, inputs], { kind: "uniform", bound: 1 / Math.sqrt(inputs) }),
    factor("lora_B", [outputs, rank], { kind: "normal", std: 0 }),
  ];
}

/** Of each unit the adapters, in place of what they are laid on. */
export function adapterUnits(units: UnitDescription[]): UnitDescription[] {
  return units.map(({ kind, adapters }) => ({ kind, parameters: adapters?.parameters ?? [] }));
}

/** `adapter_config.json` of peft's. */
export function adapterConfig({ actor }: Recipe) {
  const { model_name_or_path, lora } = actor;
  return {
    peft_type: "LORA",
    task_type: "CAUSAL_LM",
    base_model_name_or_path: model_name_or_path,
    r: lora.rank,
    lora_alpha: lora.alpha,
    lora_dropout: 0,
    target_modules: lora.target_modules,
    bias: "none",
    inference_mode: true,
  };
}

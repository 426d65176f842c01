import { messageOf } from "../../../runner/src/errors.ts";
import { count } from "../../../runner/src/recipe/arithmetic.ts";
import { type Plan, planRecipe, planTable } from "../../../runner/src/recipe/planner/index.ts";
import { compact, inBytes } from "../../../runner/src/recipe/planner/units.ts";
import { type Document, type RecipeFiles, recipeOf } from "./workspace.ts";

/** What a recipe comes to, or why that cannot be said. */
export interface PlanResult {
  plan: Plan | null;
  /** Of the plan, for people. */
  table: string | null;
  why: string | null;
}

/** Undefined for a document that is no recipe. The dataset is not read: steps stay open where its rows decide. */
export function plan(document: Document, workspace: RecipeFiles): PlanResult | undefined {
  const edited = recipeOf(document, workspace);
  if (!edited) return undefined;
  const wrong = edited.diagnostics.find(({ severity }) => severity === "error");
  if (wrong) return { plan: null, table: null, why: wrong.message };
  try {
    const shape = workspace.policyShape(edited.recipe, document.path);
    const made = planRecipe(edited.recipe, shape, { rows: null, verb: edited.verb });
    return { plan: made, table: planTable(made), why: null };
  } catch (error) {
    return { plan: null, table: null, why: messageOf(error) };
  }
}

/** The same where there is one, made once a version of the document. */
export function planOf(document: Document, workspace: RecipeFiles): Plan | undefined {
  if (!plans.has(document)) plans.set(document, plan(document, workspace)?.plan ?? undefined);
  return plans.get(document);
}

const plans = new WeakMap<Document, Plan | undefined>();

/** A number of a plan, or two that belong together. */
interface Fact {
  text: string;
  /** Of the keys whose values move it. */
  keys: RegExp;
  /** The first of these that a recipe sets has it beside it. */
  beside: string[];
}

const trainerKeys =
  /^(actor\.(model|dev|num_nodes|grad|optim|lora\.[rt])|fsdp|ref|algo\.(kl\.init|adv.+estim)|train\.max_tok|run\.dev)/;
const engineKeys =
  /^(actor\.mod|engine\.(kind|count|dtype|max|cache)|vllm\.(\w+_parallel|gpu|enable_pre|mtp)|data\.m\w+_len|run\.dev)/;
const timeKeys =
  /^(rollout\.(batch|n_samples|max_(new|turns|in_flight))|train\.(batch|updates|max_stale)|data\.epochs|run\.steps)/;
const stepKeys = new RegExp(`${trainerKeys.source}|${engineKeys.source}|${timeKeys.source}`);

/** What hovers and hints say of a plan. */
export function planFacts({ model, trainer, engine, layout, time }: Plan): Fact[] {
  const { total, active } = model.parameters;
  const used = active < total ? `, ${compact.format(active)} of them active` : "";
  const facts = [
    { text: `${compact.format(total)} parameters${used}`, keys: /^actor\.model_name/, beside: [] as string[] },
  ];
  if (trainer) {
    const memory = `${inBytes(trainer.total)} of ${inBytes(trainer.available)} a training device`;
    facts.push({ text: memory, keys: trainerKeys, beside: ["actor.devices_per_node", "actor.model_name_or_path"] });
    const microbatches = count(layout.microbatches, "microbatch", "microbatches");
    const tokens = `${microbatches} a step, of at most ${Math.round(layout.microbatchTokens)} tokens`;
    facts.push({ text: tokens, keys: /^train\.max_tokens/, beside: ["train.max_tokens_per_device"] });
  }
  if (engine) {
    const memory = `${inBytes(engine.total)} of ${inBytes(engine.available)} an engine's device`;
    const text = `${engine.sequences.mean} sequences at once, ${memory}`;
    facts.push({
      text,
      keys: engineKeys,
      beside: ["engine.max_num_seqs", "engine.cache_tokens", "engine.count", "engine.kind"],
    });
  }
  const seconds = Number(time.step.toPrecision(2));
  return [
    ...facts,
    { text: `a step takes about ${seconds} s, most of it ${time.binding}`, keys: stepKeys, beside: [] },
  ];
}

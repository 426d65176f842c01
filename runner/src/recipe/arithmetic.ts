import type { Verb } from "./guardrails/index.ts";
import type { Recipe } from "./schema.ts";

export type Arithmetic = ReturnType<typeof arithmetic>;

/**
 * What a recipe comes to over a dataset of `numRows` rows (case E2). The last batch of the data may be short. `rows`:
 * rollouts of a batch, or rows of a step of sft; `steps` is null while the dataset's number is not known; `line` is for
 * the terminal.
 */
export function arithmetic(recipe: Recipe, verb: Verb, numRows: number | null) {
  const { run, data, rollout, train } = recipe;
  const isSft = verb === "sft";
  const perStep = isSft ? train.batch_size : rollout.batch_size;
  const fromData = numRows === null ? null : Math.ceil((numRows * data.epochs) / perStep);
  const steps = run.steps ?? fromData;
  const updatesPerStep = isSft ? 1 : train.updates_per_batch;
  const rows = isSft ? perStep : perStep * rollout.n_samples_per_prompt;
  const batch = isSft
    ? `${rows} rows a step`
    : `${count(perStep, "prompt")} x ${count(rollout.n_samples_per_prompt, "sample")} = ${rows} rows a batch`;
  const updates = steps === null ? null : steps * updatesPerStep;
  const parts = [
    batch,
    steps === null ? "steps from data.epochs" : stepsInWords(steps, updatesPerStep),
    `microbatches of at most ${train.max_tokens_per_device} tokens`,
  ];
  return { rows, steps, updates, line: parts.join(", ") };
}

function stepsInWords(steps: number, updatesPerStep: number): string {
  const product = count(steps * updatesPerStep, "optimizer step");
  return `${count(steps, "batch", "batches")} x ${count(updatesPerStep, "update")} = ${product}`;
}

export function count(number: number, one: string, many = `${one}s`): string {
  return `${number} ${number === 1 ? one : many}`;
}

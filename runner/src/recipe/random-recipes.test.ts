import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, expect, test } from "vitest";
import { z } from "zod";
import type { Rollout } from "../agents/types.ts";
import { type Prompt, PromptQueue } from "../data/order.ts";
import { type LoopServices, TrainingLoop } from "../loop/loop.ts";
import { foldRun } from "../telemetry/fold.ts";
import { EventLog } from "../telemetry/log.ts";
import type { Ranks } from "../trainer/handle.ts";
import type { RankMethods, UpdateParams } from "../trainer/protocol.ts";
import { trainSettings } from "../trainer/specs.ts";
import { trainBatch } from "../trainer/train-batch.ts";
import { type Recipe, readEdited, recipeKeys } from "./index.ts";
import type { JsonType } from "./schema/describe.ts";
import { nest } from "./schema.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-random-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** Values of the type, small ones. */
function typed(json: JsonType): fc.Arbitrary<unknown> {
  if (Array.isArray(json.type)) return fc.oneof(...json.type.map((type) => typed({ ...json, type })));
  // A file in place of a name is not there.
  if (json.anyOf) return fc.oneof(...json.anyOf.filter(({ pattern }) => pattern === undefined).map(typed));
  if (json.const !== undefined) return fc.constant(json.const);
  if (json.enum) return fc.constantFrom(...json.enum);
  if (json.prefixItems) return fc.tuple(...json.prefixItems.map(typed));
  if (json.items) return fc.array(typed(json.items), { minLength: 1, maxLength: 3 });
  if (json.type === "boolean") return fc.boolean();
  if (json.type === "null") return fc.constant(null);
  if (json.type === "string")
    return json.pattern?.includes("http") ? fc.constant("http://a:1") : fc.constantFrom("a", "b.jsonl");
  const low = Math.max(json.minimum ?? json.exclusiveMinimum ?? -4, -4);
  const high = Math.min(json.maximum ?? json.exclusiveMaximum ?? low + 12, low + 12);
  if (json.type === "integer") return fc.integer({ min: low, max: high });
  return fc.double({
    min: low,
    max: high,
    minExcluded: json.exclusiveMinimum !== undefined,
    maxExcluded: json.exclusiveMaximum !== undefined,
    noNaN: true,
  });
}

/** What decides over losses is always drawn: the defaults are large. */
const sizes = /^(rollout\.(batch|n_s)|train\.(updates|max_tok)|data\.max_len|actor\.dev)/;
const settings = fc.record(
  Object.fromEntries(
    [...recipeKeys.values()].map(({ key, schema }) => {
      const value = typed(z.toJSONSchema(schema, { io: "input" }) as JsonType);
      const absent = {
        weight: key.startsWith("rollout.m") || key.startsWith("run.") ? 1 : 40,
        arbitrary: fc.constant(undefined),
      };
      return [key, sizes.test(key) ? value : fc.oneof(absent, { weight: 1, arbitrary: value })];
    }),
  ),
);

/** The case's numbers, whatever a recipe drawn at random has there. */
const base = { "actor.model_name_or_path": "m", "data.prompt_dataset": "a.jsonl", "train.agent_path": "agent.ts" };

function recipeOf(drawn: Record<string, unknown>): { recipe: Recipe; errors: string[] } {
  // Keys that only `plan` reads are left out, and their values refused, as a launch does.
  const isRun = ([key, value]: [string, unknown]) => value !== undefined && !recipeKeys.get(key)!.planned;
  const given = Object.entries({ ...drawn, ...base }).filter(isRun);
  const { recipe, diagnostics } = readEdited(JSON.stringify(nest(given)), "/r/random.yaml", { environment: {} });
  const errors = diagnostics.filter(({ severity, rule }) => severity === "error" || rule === "planned");
  // Values are of their types: whatever is refused is refused by a guardrail, or lacks nothing but a file.
  expect(errors.filter(({ code }) => code !== "guardrail")).toEqual([]);
  return { recipe, errors: errors.map(({ rule }) => rule!) };
}

/** Rows are as long as data.max_len allows, and each reward of a group differs. */
function rolloutOf(recipe: Recipe, prompt: Prompt, groupId: string, rolloutId: string, version: number): Rollout {
  const length = recipe.data.max_len;
  const { promptId, attempt } = prompt;
  const tokens = new Int32Array(length).fill(1);
  const segment = {
    tokens,
    mask: Uint8Array.from(tokens, (_, t) => Number(t > 0)),
    logprobs: Float32Array.from(tokens, (_, t) => (t > 0 ? -0.5 : Number.NaN)),
    versions: Int32Array.from(tokens, (_, t) => (t > 0 ? version : -1)),
    turns: [],
    ...(recipe.train.routing_replay && { routes: new Int16Array(length) }),
  };
  const reward = Number(rolloutId.split("/").at(-1)!.replace(/\D/g, ""));
  const timings = { startedAt: 0, seconds: 0, modelSeconds: 0 };
  const base = { runId: "r", promptId, groupId, rolloutId, attempt, info: {}, timings };
  return { ...base, segments: [segment], reward, score: reward, stop: "stop" };
}

type ScoreParams = RankMethods["score"][0];

/** The real loop and the real train step between scripted engines and ranks; what was lost on the way. */
async function stubRun(recipe: Recipe, prompts: number, directory: string) {
  const { rollout, train, run, data, actor } = recipe;
  const promptIds = Array.from({ length: prompts }, (_, index) => `p${index}`);
  const sampled = new Set<string>();
  const trained: string[] = [];
  let [engine, steps, widest] = [0, 0, 0];
  const contextSize = recipe.fsdp.cp_size;
  const dataCount = (actor.num_nodes * actor.devices_per_node) / contextSize;
  const ranks = {
    dataCount,
    contextSize,
    rowCost: (tokens: number) => tokens,
    hasReference: false,
    async all(method: string, paramsOf: (dataRank: number) => unknown) {
      const params = Array.from({ length: dataCount }, (_, rank) => paramsOf(rank));
      if (method === "score") {
        const zeros = ({ microbatches }: ScoreParams) => microbatches.flat().map(() => new Float32Array(data.max_len));
        return (params as ScoreParams[]).map((one) => ({ logprobs: zeros(one) }));
      }
      if (method === "dropRows")
        return params.map((one) => ({ found: (one as { ids: string[] }).ids.map(() => ({})) }));
      if (method !== "update") return params.map(() => undefined);
      const microbatches = (params as UpdateParams[]).flatMap((one) => one.microbatches);
      trained.push(...microbatches.flat());
      widest = Math.max(widest, ...microbatches.map((rows) => rows.length * data.max_len));
      return params.map(() => ({ sums: {}, maxima: {}, gradientNorm: 1, nonFinite: null }));
    },
  } as unknown as Ranks;
  const services: LoopServices = {
    rollout: async (prompt, groupId, rolloutId) => {
      sampled.add(`${rolloutId}/0`);
      return rolloutOf(recipe, prompt, groupId, rolloutId, engine);
    },
    train: async (groups) => {
      steps++;
      // As long as training takes, the generating task may start groups.
      for (let turn = 0; turn < 3; turn++) await new Promise(setImmediate);
      const settings = await trainSettings(recipe, 1);
      const { tokens, skipped = null, ...outcome } = await trainBatch(ranks, { groups }, settings, 0);
      if (skipped === null) expect(tokens).toBeGreaterThan(0);
      return { ...outcome, skipped };
    },
    sync: async (version) => {
      engine = version;
      return { seconds: 0, checksum: "c", engines: 1 };
    },
    evaluate: null,
    storeRollouts: async () => {},
    checkpoint: async () => {},
    died: new Promise<never>(() => {}),
  };
  const queue = new PromptQueue({
    promptIds,
    seed: run.seed,
    epochs: run.steps === null ? data.epochs : Number.POSITIVE_INFINITY,
    maxAttempts: rollout.max_attempts,
  });
  const options = {
    steps: run.steps,
    batchSize: rollout.batch_size,
    samplesPerPrompt: rollout.n_samples_per_prompt,
    minGroup: rollout.min_group ?? rollout.n_samples_per_prompt,
    maxStaleness: train.max_staleness,
    maxInFlight: rollout.max_in_flight,
    groupTimeout: 60,
    evalSteps: -1,
    evalAtStart: false,
    evalApart: false,
    deterministic: false,
    saveSteps: -1,
    // What the clip of rewards makes equal is skipped; that is no loss.
    stopAfterSkipped: Number.POSITIVE_INFINITY,
  };
  const log = new EventLog(join(directory, "events.ndjson"));
  await new TrainingLoop(options, services, queue, log, null).run(new AbortController().signal);
  const { groups } = foldRun(log.read());
  return { groups, sampled, trained, steps, widest };
}

// cases E1, E4
test("a random recipe is refused, or a run of it loses no sample", { timeout: 120_000 }, async () => {
  const seen = { refused: 0, run: 0 };
  await fc.assert(
    fc.asyncProperty(settings, fc.integer({ min: 1, max: 20 }), async (drawn, prompts) => {
      const { recipe, errors } = recipeOf(drawn);
      if (errors.length > 0) {
        seen.refused++;
        return;
      }
      seen.run++;
      const shown = JSON.stringify(drawn);
      const directory = mkdtempSync(join(folder, "run-"));
      const { groups, sampled, trained, steps, widest } = await stubRun(recipe, prompts, directory);
      const { rollout, run, data, train } = recipe;
      // Every sampled rollout is in exactly one optimizer step, or its group was dropped with a reason.
      expect(new Set(trained).size).toBe(trained.length);
      const kept = groups.filter(({ outcome }) => outcome === "trained");
      expect(groups.every(({ outcome, reason }) => outcome === "trained" || reason !== undefined)).toBe(true);
      expect(trained).toHaveLength(kept.length * rollout.n_samples_per_prompt);
      expect(trained.every((row) => sampled.has(row))).toBe(true);
      expect(sampled.size, shown).toBe(groups.length * rollout.n_samples_per_prompt);
      // Every prompt once an epoch, or as many as the steps need.
      const wanted = run.steps === null ? prompts * data.epochs : run.steps * rollout.batch_size;
      expect(groups.length, shown).toBe(wanted);
      expect(steps).toBe(Math.ceil(wanted / rollout.batch_size));
      expect(widest).toBeLessThanOrEqual(train.max_tokens_per_device * recipe.fsdp.cp_size);
    }),
    { numRuns: 300 },
  );
  expect(seen.run).toBeGreaterThan(30);
  expect(seen.refused).toBeGreaterThan(30);
});

test("a last batch that trains long starts no group that nobody would train", async () => {
  const sized = { "rollout.n_samples_per_prompt": 2, "data.max_len": 4 };
  for (const [batch, flight, steps, staleness] of [
    [2, 1, 1, 1],
    [3, 2, 1, 2],
    [3, null, 2, 2],
    [1, 1, 2, 2],
  ]) {
    const numbers = { "rollout.batch_size": batch, "rollout.max_in_flight": flight, "run.steps": steps };
    const { recipe } = recipeOf({ ...sized, ...numbers, "train.max_staleness": staleness });
    const { sampled } = await stubRun(recipe, 19, mkdtempSync(join(folder, "run-")));
    expect(sampled.size).toBe(batch! * steps! * 2);
  }
});

test("what the sizes' guardrails refuse would lose something, or stop", async () => {
  const lossy = async (drawn: Record<string, unknown>, rule: string) => {
    const { recipe, errors } = recipeOf(drawn);
    expect(errors).toEqual([rule]);
    return stubRun(recipe, 6, mkdtempSync(join(folder, "run-")));
  };
  const small = { "rollout.batch_size": 2, "rollout.n_samples_per_prompt": 2, "data.max_len": 8 };
  // Five updates are asked for, and four rollouts make four.
  const { trained } = await lossy({ ...small, "train.updates_per_batch": 5 }, "updates");
  expect(trained).toHaveLength(12);
  await expect(lossy({ ...small, "train.max_tokens_per_device": 7 }, "rowFits")).rejects.toThrow("row");
  await expect(lossy({ ...small, "rollout.min_group": 3 }, "minGroup")).rejects.toThrow("dropped");
  const alone = await lossy({ ...small, "rollout.n_samples_per_prompt": 1 }, "groupSize");
  expect(alone.groups.every(({ outcome }) => outcome === "dropped") || alone.trained.length === 6).toBe(true);
});

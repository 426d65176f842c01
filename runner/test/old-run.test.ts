/** A run of the first version, as it was made (paths made relative): later versions open it, or refuse it by name. */
import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { trainingVerb } from "../src/commands/resume.ts";
import { findCheckpoint } from "../src/loop/checkpoint.ts";
import { RunDirectory } from "../src/loop/run-directory.ts";
import { loadRecipe } from "../src/recipe/index.ts";
import { foldRun } from "../src/telemetry/fold.ts";
import { funnelOf } from "../src/telemetry/funnel.ts";
import { readEvents } from "../src/telemetry/log.ts";
import { findRollout, readRollouts, type StoredGroup } from "../src/telemetry/shards.ts";
import { summarize } from "../src/telemetry/summary.ts";
import { root } from "./tree.ts";

const run = mkdtempSync(join(tmpdir(), "old-run-"));
cpSync(join(root, "runner/test/fixtures/run-1"), run, { recursive: true });
afterAll(() => rmSync(run, { recursive: true, force: true }));

it("opens: its recipe, its events and what they add up to", () => {
  const { recipe } = loadRecipe(join(run, "recipe.yaml"), { verb: "run" });
  expect(recipe.rollout).toMatchObject({ batch_size: 2, n_samples_per_prompt: 4 });
  const state = foldRun(readEvents(join(run, "events.ndjson")));
  expect(state).toMatchObject({ state: "completed", step: 2, policyVersion: 2, totalSteps: 2 });
  // As its terminal showed them.
  expect(state.steps.map(({ metrics }) => metrics.reward)).toEqual([0, 0.125]);
  const written = JSON.parse(readFileSync(join(run, "summary.json"), "utf8"));
  expect(written.format).toBe(1);
  expect(summarize(state)).toMatchObject(written);
});

it("opens: its rollouts, token by token", async () => {
  const stored: StoredGroup[] = [];
  for await (const one of readRollouts(run)) stored.push(one);
  expect(stored.map(({ step, group }) => [step, group.rollouts.length])).toEqual(Array.from("1122", (n) => [+n, 4]));
  const { funnels } = foldRun(readEvents(join(run, "events.ndjson")));
  for (const { step, sampled, trained, rows } of funnels) {
    const records = stored.filter((one) => one.step === step);
    expect(funnelOf(records)).toMatchObject({ sampled, trained, rows });
  }
  const { rollout } = await findRollout(run, "prompts:1852@0.0/0");
  // "<bos><user>sort 4069<end><asst>" and "0129<end>", a token a character or tag.
  expect(rollout.segments[0]!.tokens).toHaveLength(13 + 5);
  expect([...rollout.segments[0]!.mask]).toEqual([...Array(13).fill(0), ...Array(5).fill(1)]);
});

it("is looked at by resume, which finds no checkpoint in it", async () => {
  const directory = RunDirectory.open(run);
  try {
    expect(trainingVerb(directory, foldRun(readEvents(directory.events)))).toBe("run");
    expect(await findCheckpoint(directory.checkpoints, () => {})).toBeNull();
  } finally {
    directory.release();
  }
});

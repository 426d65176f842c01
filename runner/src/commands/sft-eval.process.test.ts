/** `sft` and `eval` on the recipes of their names, as real processes. */
import { execFile, execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { pythonPath } from "../../../native/setup/locate.mjs";
import { until } from "../../test/processes.ts";
import { readDataset } from "../data/dataset.ts";
import { encodeDemonstration } from "../data/demonstration.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { deadlineMs } from "../deadline.ts";
import { unpack } from "../encoding.ts";
import type { LoopState } from "../loop/checkpoint.ts";
import { foldRun } from "../telemetry/fold.ts";
import { readEvents } from "../telemetry/log.ts";

const root = fileURLToPath(new URL("../../../", import.meta.url));
let home: string;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "sft-eval-"));
  cpSync(join(root, "recipes"), join(home, "recipes"), { recursive: true });
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const execute = promisify(execFile);
const molt = (...words: string[]) =>
  execute(process.execPath, [process.env.MOLT_CLI!, ...words], { cwd: home, timeout: deadlineMs(240) });
/** The one run below a folder of its own. */
const only = (folder: string) => join(home, folder, readdirSync(join(home, folder))[0]!);
const foldOf = (directory: string) => foldRun(readEvents(join(directory, "events.ndjson")));
const stepFolder = (directory: string, step: number) => join(directory, "checkpoints", `step-00000${step}`);

/** Weights, moments and optimizer's step by their hash, and all that the controller keeps but the recipe's. */
function checkpointOf(directory: string, step: number) {
  const folder = stepFolder(directory, step);
  const shard = createHash("sha256")
    .update(readFileSync(join(folder, "rank0.safetensors")))
    .digest("hex");
  const { recipeHash: _, ...state } = unpack(readFileSync(join(folder, "loop.msgpack"))) as LoopState;
  return { shard, state };
}

describe("sft", () => {
  // 400 rows, of which 60, in batches of 16: an epoch ends in the midst of step 4, the run with step 8, which is short.
  const flags = ["--data.max_samples", "60", "--data.epochs", "2", "--train.batch_size", "16", "--eval.steps", "3"];
  flags.push("--ckpt.save_steps", "2", "--ckpt.max_num", "9");
  let whole: string;

  beforeAll(async () => {
    await molt("sft", "recipes/sft.yaml", ...flags, "--run.dir", "whole");
    whole = only("whole");
  });

  it("evaluates at its cadence and at the end: the token mean over all held-out rows, as in transformers", async () => {
    const run = foldOf(whole);
    expect(run).toMatchObject({ state: "completed", step: 8, totalSteps: 8 });
    expect(run.evals.map(({ step, policyVersion }) => [step, policyVersion])).toEqual([0, 3, 6, 8].map((n) => [n, n]));
    expect(run.evals.at(-1)!.metrics.loss).toBeLessThan(run.evals[0]!.metrics.loss! - 1);
    const tokenizer = await Tokenizer.load(join(home, "recipes/tools/model"), {
      chatTemplate: join(home, "recipes/sft/chat_template.jinja"),
    });
    const columns = { inputKey: "messages", outputKey: "reply" };
    const { rows } = await readDataset(join(home, "recipes/sft/heldout.jsonl"), columns);
    const encoded = await Promise.all(
      rows.map(async ({ messages, fields }) => {
        const { tokens, mask } = await encodeDemonstration(tokenizer, messages, {
          tools: fields.tools as object[] as never,
        });
        return { tokens: [...tokens], mask: [...mask] };
      }),
    );
    const script = join(root, "runner/test/check_loss.py");
    const options = { input: JSON.stringify(encoded), timeout: deadlineMs(240), encoding: "utf8" } as const;
    const loss = Number(execFileSync(pythonPath(), [script, join(whole, "export")], options));
    const { metrics } = run.evals.at(-1)!;
    expect(Math.abs(metrics.loss! - loss)).toBeLessThan(1e-5);
    expect(Math.abs(metrics.perplexity! - Math.exp(loss))).toBeLessThan(1e-4);
    expect(metrics.tokens).toBe(encoded.flatMap(({ mask }) => mask).filter((value) => value === 1).length);
  });

  it("labels the checkpoint of the least held-out loss, with the version that was evaluated", () => {
    const { evals } = foldOf(whole);
    const saved = evals.filter(({ step }) => existsSync(stepFolder(whole, step)));
    const best = saved.reduce((one, other) => (other.metrics.loss! < one.metrics.loss! ? other : one));
    const summary = JSON.parse(readFileSync(join(whole, "summary.json"), "utf8"));
    const { step, policyVersion, metrics } = best;
    expect(summary.best).toEqual({ step, policy_version: policyVersion, metric: "loss", value: metrics.loss });
  });

  it("killed in the midst of an epoch and resumed ends bit-identical, each row trained once an epoch", async () => {
    const running = molt("sft", "recipes/sft.yaml", ...flags, "--run.dir", "killed");
    const ended = running.catch((error) => error);
    const runs = join(home, "killed");
    const begun = () => existsSync(runs) && readdirSync(runs).length === 1;
    const reached = () => begun() && existsSync(stepFolder(only("killed"), 2));
    await until("the checkpoint of step 2", reached);
    running.child.kill("SIGKILL");
    await ended;
    const killed = only("killed");
    const { stdout } = await molt("resume", killed);
    expect(stdout).toMatch(/resuming at [246] of 8/);
    const { shard, state } = checkpointOf(killed, 8);
    expect({ shard, state }).toEqual(checkpointOf(whole, 8));
    expect(shard).not.toBe(checkpointOf(whole, 6).shard);
    expect(state.prompts).toMatchObject({ length: 60, begun: 120, attempts: [] });
    const [one, other] = [whole, killed].map((directory) => foldOf(directory).evals.map(({ metrics }) => metrics));
    expect(other).toEqual(one);
    const again = await molt("resume", killed).catch((error) => error);
    expect([again.code, again.stdout]).toEqual([3, expect.stringContaining("nothing to do")]);
  });

  it("leaves out or cuts rows that are too long, and says how many, in the steps too", async () => {
    const longest = ["--data.max_len", "90", "--run.dir", "short", ...flags];
    const refused = await molt("sft", "recipes/sft.yaml", ...longest).catch((error) => error);
    expect(refused.code, refused.stderr).toBe(2);
    expect(refused.stderr).toMatch(
      /data.prompt_dataset: \d+ rows cannot be demonstrations:\s+train:\d+ has \d+ tokens/,
    );
    const { stdout } = await molt("check", "recipes/sft.yaml", ...longest, "--data.overlong", "drop", "--json");
    const { arithmetic } = JSON.parse(stdout);
    expect(arithmetic.steps).toBeLessThan(8);
    const { stdout: shown } = await molt("sft", "recipes/sft.yaml", ...longest, "--data.overlong", "drop");
    const [, count, dropped] = /read: .* \((\d+) demonstrations, .*: 0 cut, (\d+) left out\)/.exec(shown)!;
    expect(Number(count) + Number(dropped)).toBe(60);
    expect(foldOf(only("short"))).toMatchObject({ state: "completed", step: Math.ceil((2 * Number(count)) / 16) });
  });
});

describe("eval", () => {
  const few = ["--eval.dataset", "recipes/quickstart/few.jsonl"];
  const sampling = ["--eval.n_samples_per_prompt", "4", "--eval.temperature", "1", "--eval.pass_k", "1,4"];

  beforeAll(async () => {
    const lines = readFileSync(join(home, "recipes/quickstart/heldout.jsonl"), "utf8").split("\n").slice(0, 12);
    const rows = lines.map((line, at) =>
      JSON.stringify({ ...JSON.parse(line), data_source: at < 8 ? "long" : "short" }),
    );
    writeFileSync(join(home, "recipes/quickstart/few.jsonl"), `${rows.join("\n")}\n`);
    // Scores that differ between replies, whatever the warm-up left.
    const agent = join(home, "recipes/quickstart/agent.ts");
    const reward = "action.text === row.label ? 1 : 0";
    expect(readFileSync(agent, "utf8")).toContain(reward);
    writeFileSync(agent, readFileSync(agent, "utf8").replace(reward, "(action.text.charCodeAt(0) || 0) / 64"));
    await molt("sft", "recipes/quickstart/warmup.yaml", "--run.steps", "20", "--run.dir", "warm");
    const short = ["--run.steps", "4", "--rollout.batch_size", "6", "--eval.steps", "1", "--ckpt.save_steps", "1"];
    await molt("run", "recipes/quickstart.yaml", ...short, "--ckpt.max_num", "9", ...few, "--run.dir", "runs");
  });

  it("of a recipe is a table with pass@k, and a run whose rollouts inspect shows", async () => {
    const { stdout } = await molt("eval", "recipes/eval.yaml", ...few, ...sampling, "--run.dir", "evals");
    const table = Object.fromEntries(
      stdout.split("\n").map((line) => [line.split(/\s+/)[0], line.split(/\s+/).slice(1)]),
    );
    expect(stdout.split("\n")[0]!.trim().split(/\s+/)).toEqual(["all", "long", "short"]);
    expect(table.prompts).toEqual(["12", "8", "4"]);
    const { evals, command, state } = foldOf(only("evals"));
    expect([command, state]).toEqual(["eval", "completed"]);
    const { metrics } = evals[0]!;
    expect(table["pass@4"]).toEqual(["pass@4", "long/pass@4", "short/pass@4"].map((name) => metrics[name]!.toFixed(3)));
    const listed = await molt("inspect", only("evals"), "--json", "--limit", "99");
    const rollouts: { rollout: string; reward: number; dropped: string }[] = JSON.parse(listed.stdout);
    expect(rollouts).toHaveLength(48);
    const best = new Map<string, number>();
    for (const { rollout, reward } of rollouts) {
      const prompt = rollout.replace(/\/\d+$/, "");
      best.set(prompt, Math.max(best.get(prompt) ?? 0, reward));
    }
    // Of four samples the best of four is the best.
    const mean = [...best.values()].reduce((sum, value) => sum + value, 0) / 12;
    expect(Math.abs(metrics["pass@4"]! - mean)).toBeLessThan(1e-9);
    const resumed = await molt("resume", only("evals")).catch((error) => error);
    expect([resumed.code, resumed.stderr]).toEqual([2, expect.stringContaining("was made by eval")]);
  });

  it("of a checkpoint gives what the run's eval of that version gave: the best one's label is right", async () => {
    const directory = only("runs");
    const { best } = JSON.parse(readFileSync(join(directory, "summary.json"), "utf8"));
    const { evals } = foldOf(directory);
    expect(best).toMatchObject({
      metric: "accuracy",
      value: Math.max(...evals.slice(1).map((e) => e.metrics.accuracy!)),
    });
    const { stdout } = await molt("eval", stepFolder(directory, best.step), "--json", "--run.dir", "evals-2");
    const said = JSON.parse(stdout);
    expect(said).toMatchObject({ step: best.step, policy_version: best.policy_version });
    expect(said.model).toContain(`checkpoints/step-00000${best.step}`);
    expect(said.metrics.accuracy).toBe(best.value);
  });

  it("of a run is of its newest checkpoint, which is what its export holds", async () => {
    const directory = only("runs");
    const ofRun = JSON.parse((await molt("eval", directory, "--json", "--run.dir", "evals-3")).stdout);
    const ofExport = JSON.parse(
      (await molt("eval", join(directory, "export"), "--json", "--run.dir", "evals-4")).stdout,
    );
    for (const said of [ofRun, ofExport]) expect(said).toMatchObject({ step: 4, policy_version: 4 });
    expect(ofExport.model).toMatch(/export$/);
    const { metrics } = foldOf(directory).evals.at(-1)!;
    for (const said of [ofRun, ofExport]) expect(said.metrics.accuracy).toBe(metrics.accuracy);
    cpSync(join(directory, "export"), join(home, "alone"), { recursive: true });
    const alone = await molt("eval", "alone").catch((error) => error);
    expect([alone.code, alone.stderr]).toEqual([
      2,
      expect.stringContaining("name the recipe: molt-runner eval RECIPE"),
    ]);
  });

  it("in training keeps its rollouts, apart from those that were trained", async () => {
    const directory = only("runs");
    const list = async (...words: string[]) => {
      const { stdout } = await molt("inspect", directory, "--json", "--limit", "9999", ...words);
      return JSON.parse(stdout) as { rollout: string; step: number; dropped: string | null }[];
    };
    const trained = await list();
    expect(trained.filter(({ dropped }) => dropped === "eval")).toEqual([]);
    const evaluated = await list("--dropped", "eval");
    // Five evals of twelve prompts, greedy and sampled.
    expect(evaluated).toHaveLength(5 * 12 * 2);
    expect([...new Set(evaluated.map(({ step }) => step))]).toEqual([0, 1, 2, 3, 4]);
    const { stdout } = await molt("inspect", directory, evaluated[0]!.rollout);
    expect(stdout).toContain('rollout "eval-0/accuracy/few:1/0"');
  });
});

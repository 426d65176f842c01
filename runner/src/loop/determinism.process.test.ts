/** Case F4 and `run.deterministic`, with real processes: the quickstart's model from random weights. */
import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { until } from "../../test/processes.ts";
import { readEvents } from "../telemetry/log.ts";

const root = fileURLToPath(new URL("../../../", import.meta.url));
const cli = process.env.MOLT_CLI!;
let home: string;
let recipe: string;

/** Two updates a batch, a rate that changes with each, prompts of more than one epoch. */
const recipeText = `
run: { name: same, dir: RUNS, seed: 5, steps: 4, deterministic: true }
actor: { model_name_or_path: quickstart/model, init: random, adam: { lr: 1.0e-3 }, lr_scheduler: cosine }
data: { prompt_dataset: quickstart/prompts.jsonl, input_key: prompt, label_key: label, max_len: 64, max_samples: 14 }
rollout: { batch_size: 4, n_samples_per_prompt: 3, max_new_tokens: 6, max_turns: 1, workers: 2 }
train: { agent_path: quickstart/varied.ts, max_staleness: 0, updates_per_batch: 2 }
engine: { count: 2 }
eval: { dataset: quickstart/few.jsonl, steps: 2, at_start: false }
ckpt: { save_steps: 1, max_num: 10 }
`;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "same-"));
  cpSync(join(root, "recipes/quickstart"), join(home, "quickstart"), { recursive: true });
  const heldOut = readFileSync(join(home, "quickstart/heldout.jsonl"), "utf8").split("\n").slice(0, 6);
  writeFileSync(join(home, "quickstart/few.jsonl"), `${heldOut.join("\n")}\n`);
  // Rewards that differ between random replies.
  const agent = readFileSync(join(home, "quickstart/agent.ts"), "utf8");
  const reward = "action.text === row.label ? 1 : 0";
  expect(agent).toContain(reward);
  writeFileSync(join(home, "quickstart/varied.ts"), agent.replace(reward, "(action.text.charCodeAt(0) || 0) / 64"));
  recipe = join(home, "same.yaml");
  writeFileSync(recipe, recipeText.replace("RUNS", join(home, "runs")));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const start = promisify(execFile);
const molt = (...words: string[]) => start(process.execPath, [cli, ...words], { cwd: home });
/** In the order of their start. */
const runs = () => (existsSync(join(home, "runs")) ? readdirSync(join(home, "runs")).sort() : []);
const eventsOf = (run: number) => join(home, "runs", runs()[run]!, "events.ndjson");

/** Weights, moments and step of each rank, and all that the controller keeps. */
function checkpoint(run: number, step: number): Record<string, string> {
  const directory = join(home, "runs", runs()[run]!, "checkpoints", `step-${String(step).padStart(6, "0")}`);
  const files = readdirSync(directory);
  expect(files).toContain("rank0.safetensors");
  return Object.fromEntries(files.map((file) => [file, readFileSync(join(directory, file)).toString("base64")]));
}

/** The last word on each step's metrics, times aside, and on each eval's. */
function metricsOf(run: number) {
  const said = new Map<string, unknown>();
  for (const event of readEvents(eventsOf(run))) {
    if (event.type === "eval") said.set(`eval ${event.step}`, event.metrics);
    if (event.type !== "step") continue;
    const kept = Object.entries(event.metrics).filter(([key]) => !/seconds|time|live_groups/.test(key));
    said.set(`step ${event.step}`, Object.fromEntries(kept));
  }
  return said;
}

it("a run again, and one killed after two of four steps and resumed, end bit-identical", async () => {
  await molt("run", recipe);
  await molt("run", recipe);
  const running = molt("run", recipe);
  const ended = running.catch((error) => error);
  const reached = until("the second checkpoint and its eval", () => {
    if (runs().length < 3 || !existsSync(eventsOf(2))) return false;
    const said = [...readEvents(eventsOf(2))].map((event) => ("step" in event ? `${event.type} ${event.step}` : ""));
    return said.includes("checkpoint 2") && said.includes("eval 2");
  });
  const early = ended.then(({ stderr }) => Promise.reject(new Error(`it ended by itself: ${stderr}`)));
  await Promise.race([reached, early]);
  early.catch(() => {});
  running.child.kill("SIGKILL");
  await ended;
  await molt("resume", join(home, "runs", runs()[2]!));
  expect([...readEvents(eventsOf(2))].filter(({ type }) => type === "resumed")).toHaveLength(1);
  for (const run of [1, 2]) expect(checkpoint(run, 4)).toEqual(checkpoint(0, 4));
  expect(checkpoint(0, 3)["rank0.safetensors"]).not.toEqual(checkpoint(0, 4)["rank0.safetensors"]);
  const metrics = metricsOf(0);
  expect([...metrics.keys()].sort()).toEqual(["eval 2", "eval 4", "step 1", "step 2", "step 3", "step 4"]);
  for (const run of [1, 2]) expect(metricsOf(run)).toEqual(metrics);
}, 300_000);

it("refuses an agent with a client of its own", async () => {
  const chat = join(home, "quickstart/chat.ts");
  writeFileSync(
    chat,
    `import { ChatAgent } from "molt-runner";
export default class extends ChatAgent {
  async run() { return { reward: 0 }; }
}
`,
  );
  const refused = await molt("run", recipe, "--train.agent_path", chat).catch((error) => error);
  expect(refused.code, refused.stderr).toBe(2);
  expect(refused.stderr).toContain("run.deterministic needs an Env");
});

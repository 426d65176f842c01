/** A run through adapters, from a base to both exports, as real processes. */
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readSafetensorsHeader } from "../data/safetensors.ts";
import { deadlineMs } from "../deadline.ts";
import { readEvents } from "../telemetry/log.ts";

const cli = process.env.MOLT_CLI!;
let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "lora-"));
  cpSync(fileURLToPath(new URL("../../../recipes/quickstart", import.meta.url)), join(home, "quickstart"), {
    recursive: true,
  });
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const recipe = `
run: { name: adapted, seed: 3, dir: runs, steps: 4, deterministic: true }
actor:
  model_name_or_path: base
  lora: { rank: 4, alpha: 8, target_modules: [q_proj, down_proj] }
  adam: { lr: 1.0e-2 }
  lr_warmup_ratio: 0
data: { prompt_dataset: quickstart/prompts.jsonl, input_key: prompt, label_key: label, max_len: 64 }
rollout: { batch_size: 4, n_samples_per_prompt: 4, max_new_tokens: 8, max_turns: 1 }
algo: { kl: { init_coef: 0.01 } }
train: { agent_path: quickstart/varied.ts, max_staleness: 0 }
ckpt: { save_steps: 1 }
`;

const runs = () =>
  readdirSync(join(home, "runs"))
    .sort()
    .map((name) => join(home, "runs", name));

/** Exit code and what it said. */
function run(...words: string[]): Promise<{ code: number; output: string }> {
  return new Promise((resolve) => {
    const options = { cwd: home, timeout: deadlineMs(120) };
    const child = execFile(process.execPath, [cli, ...words], options, (_, stdout, stderr) => {
      resolve({ code: child.exitCode ?? -1, output: stdout + stderr });
    });
  });
}

function tensorsOf(file: string): Map<string, { shape: number[]; values: Float32Array }> {
  const bytes = readFileSync(file);
  return new Map(
    readSafetensorsHeader(file).entries.map(({ name, shape, offset, bytes: size }) => {
      return [name, { shape, values: new Float32Array(Uint8Array.from(bytes.subarray(offset, offset + size)).buffer) }];
    }),
  );
}

test("the adapters move, the base does not: the export is base + alpha / rank x B A of the adapters'", async () => {
  const agent = readFileSync(join(home, "quickstart/agent.ts"), "utf8");
  // Differs between replies, whatever the base says.
  const reward = agent.replace("action.text === row.label ? 1 : 0", "(action.text.charCodeAt(0) || 0) / 64");
  writeFileSync(join(home, "quickstart/varied.ts"), reward);
  writeFileSync(join(home, "lora.yaml"), recipe);
  const flags = ["--run.steps", "3", "--run.dir", "sft", "--ckpt.output_dir", "base"];
  const warmup = await run("sft", "quickstart/warmup.yaml", ...flags);
  expect(warmup.code, warmup.output).toBe(0);

  const trained = await run("run", "lora.yaml");
  expect(trained.code, trained.output).toBe(0);
  const [directory] = runs();
  const steps = [...readEvents(join(directory!, "events.ndjson"))].filter((event) => event.type === "step");
  // The reference is the base: a new adapter adds nothing to it. Then it does.
  expect(steps.map(({ metrics }) => metrics.kl! > 0)).toEqual([false, true, true, true]);

  // case F4
  const half = await run("run", "lora.yaml", "--run.steps", "2");
  expect(half.code, half.output).toBe(0);
  const resumed = await run("resume", runs()[1]!, "--run.steps", "4");
  expect(resumed.code, resumed.output).toBe(0);
  const [whole, continued] = runs().map((folder) => readFileSync(join(folder, "export/model.safetensors")));
  expect(continued!.equals(whole!)).toBe(true);
  const other = await run("resume", runs()[1]!, "--actor.lora.alpha", "4", "--run.steps", "6");
  expect(other).toMatchObject({
    code: 2,
    output: expect.stringContaining("actor.lora: its weights are of a model with"),
  });

  const exported = await run("export", directory!, "--adapter");
  expect(exported.code, exported.output).toBe(0);
  const config = JSON.parse(readFileSync(join(directory!, "adapter/adapter_config.json"), "utf8"));
  expect(config).toMatchObject({ peft_type: "LORA", r: 4, lora_alpha: 8, target_modules: ["q_proj", "down_proj"] });
  const adapter = tensorsOf(join(directory!, "adapter/adapter_model.safetensors"));
  const [base, model] = ["base", join(directory!, "export")].map((folder) =>
    tensorsOf(join(folder === "base" ? join(home, folder) : folder, "model.safetensors")),
  );
  const factors = new Set<string>();
  for (const [name, { shape, values }] of base!) {
    const found = model!.get(name)!.values;
    const [A, B] = ["lora_A", "lora_B"].map((kind) => `base_model.model.${name.replace(/weight$/, `${kind}.weight`)}`);
    if (!adapter.has(A!)) {
      expect(found, name).toEqual(values);
      continue;
    }
    for (const factor of [A!, B!]) factors.add(factor);
    const [a, b] = [adapter.get(A!)!.values, adapter.get(B!)!.values];
    const columns = shape[1]!;
    const gaps = found.map((value, at) => {
      const [row, column] = [Math.floor(at / columns), at % columns];
      let product = 0;
      for (let i = 0; i < 4; i++) product += b[row * 4 + i]! * a[i * columns + column]!;
      return Math.abs(value - (values[at]! + (8 / 4) * product));
    });
    expect(Math.max(...gaps), name).toBeLessThan(1e-6);
    expect(Math.max(...b.map(Math.abs)), name).toBeGreaterThan(1e-3);
  }
  expect([...adapter.keys()].filter((name) => !factors.has(name))).toEqual([]);

  const plain = await run("export", join(home, "sft", readdirSync(join(home, "sft"))[0]!), "--adapter");
  expect(plain).toMatchObject({ code: 2, output: expect.stringContaining("has no adapter: its actor.lora.rank is 0") });
});

import { describe, expect, test } from "vitest";
import { read } from "../../../test/tree.ts";
import { diagnose, guardrailRules, guardrailsOf, type Recipe, readEdited, recipeKeys } from "../index.ts";

const right = `actor: { model_name_or_path: model }
data: { prompt_dataset: a.jsonl }
train: { agent_path: agent.ts }
`;

/** A right recipe with the sections of `lines` in place of its own, below it from line 4 on. */
function recipeWith(lines: string): string {
  const sections = lines.split("\n").map((line) => line.slice(0, line.indexOf(":")));
  const kept = right.split("\n").map((line) => (sections.includes(line.slice(0, line.indexOf(":"))) ? "" : line));
  return kept.join("\n") + lines;
}

/** `[column on line 4, severity, message]` of what the guardrails say of it. */
function judge(lines: string): [number, string, string][] {
  return diagnose(recipeWith(lines), "r.yaml", { environment: {} })
    .filter(({ rule }) => rule !== "planned")
    .map(({ range, severity, message, code }) => {
      expect(code).toBe("guardrail");
      expect(range.start.line).toBe(3);
      return [range.start.character + 1, severity, message];
    });
}

const train = "train: { agent_path: agent.ts";
const actor = "actor: { model_name_or_path: model";
const off = "algo: { advantage: { is_correction_level: off } }";

/** Notes in `read` which keys of a recipe are read. */
function watched(section: object, path: string, read: Set<string>): object {
  return new Proxy(section, {
    get(target, name: string) {
      const key = path ? `${path}.${name}` : name;
      const value: unknown = target[name as keyof object];
      if (recipeKeys.has(key)) read.add(key);
      return recipeKeys.has(key) ? value : watched(value as object, key, read);
    },
  });
}

const wrong: [lines: string, column: number, severity: string, message: string][] = [
  [
    `${train}, agent_command: [a] }`,
    47,
    "error",
    "train.agent_path and train.agent_command each name an agent\n  fix: leave one of them out",
  ],
  [
    `${train}, grader_command: [a] }`,
    48,
    "error",
    "train.grader_command grades what train.agent_command did; an agent's class returns its reward itself",
  ],
  [
    "engine: { count: 3, urls: [http://a:1, http://b:1] }",
    27,
    "error",
    "engine.count (3) must be 2: engine.urls names 2 engines",
  ],
  [
    "vllm: { pipeline_parallel_size: 2, data_parallel_size: 4 }\nengine: { kind: vllm }",
    33,
    "error",
    "vllm.pipeline_parallel_size (2) must be 1 with vllm.data_parallel_size 4: take vllm.tensor_parallel_size",
  ],
  [
    "vllm: { mtp_num_speculative_tokens: 2 }\nengine: { kind: vllm }",
    37,
    "error",
    "vllm.enable_prefix_caching must be false with vllm.mtp_num_speculative_tokens 2: " +
      "a cached prefix lacks what drafting needs",
  ],
  [
    "engine: { kind: vllm, cache_tokens: 4096 }",
    37,
    "warning",
    "engine.cache_tokens is the embedded engine's; vLLM fills vllm.gpu_memory_utilization",
  ],
  [
    "ckpt: { best_metric_key: sampled }\neval: { dataset: e.jsonl, sampled: false }",
    26,
    "error",
    "ckpt.best_metric_key sampled is measured with eval.sampled only",
  ],
  [
    "ckpt: { best_metric_key: acuracy }",
    26,
    "error",
    "ckpt.best_metric_key names acuracy, which evals do not measure: they do accuracy, reward, sampled",
  ],
  [
    "eval: { dataset: e.jsonl, temperature: 1, n_samples_per_prompt: 4, pass_k: [1, 8] }",
    65,
    "error",
    "eval.pass_k 8 needs as many samples: eval.n_samples_per_prompt is 4",
  ],
  [
    "eval: { dataset: e.jsonl, n_samples_per_prompt: 4, pass_k: [4] }",
    49,
    "error",
    "eval.pass_k 4 at eval.temperature 0 compares 4 samples that are all the same",
  ],
  [
    "data: { prompt_dataset: [a.jsonl, b.csv], prompt_probs: [1, 2], curriculum: solve_rate }",
    77,
    "error",
    "data.curriculum solve_rate and data.prompt_probs both decide which prompts come first",
  ],
  // case B2
  [
    "rollout: { top_p: 0.9 }",
    19,
    "error",
    "rollout.top_p must be 1, not 0.9: training needs log-probabilities over the full vocabulary, " +
      "and top_p cuts it (eval.top_p is free)",
  ],
  [
    "rollout: { temperature: 0 }",
    25,
    "error",
    "rollout.temperature must be above 0: greedy sampling gives a group of equal rollouts, " +
      "without log-probabilities to train on; try 1",
  ],
  [
    "rollout: { max_new_tokens: 2048 }",
    28,
    "error",
    "rollout.max_new_tokens (2048) must be below data.max_len (2048), which counts the prompt too",
  ],
  [
    "eval: { max_new_tokens: 3000 }",
    25,
    "error",
    "eval.max_new_tokens (3000) must be below data.max_len (2048), which counts the prompt too",
  ],
  // case C2
  [
    "rollout: { n_samples_per_prompt: 1 }",
    34,
    "error",
    "rollout.n_samples_per_prompt must be at least 2, not 1: reinforce_baseline compares the rollouts of a prompt, " +
      "and one alone has no advantage",
  ],
  [
    "rollout: { min_group: 9 }",
    23,
    "error",
    "rollout.min_group must be from 2 to rollout.n_samples_per_prompt (8), not 9",
  ],
  [
    "rollout: { min_group: 1 }",
    23,
    "error",
    "rollout.min_group must be from 2 to rollout.n_samples_per_prompt (8), not 1",
  ],
  [
    "rollout: { max_in_flight: 257 }",
    27,
    "warning",
    "rollout.max_in_flight (257) does nothing above 256: (train.max_staleness 1 + 1) x 128 prompts = 256 groups " +
      "are admitted at once",
  ],
  ["eval: { engines: 1 }", 18, "error", "eval.engines (1) must be below engine.count (1): none is left to train"],
  [
    "run: { deterministic: true }",
    23,
    "error",
    "run.deterministic needs train.max_staleness 0: which batch a rollout meets depends on time",
  ],
  [
    `${train}, updates_per_batch: 1025 }`,
    51,
    "error",
    "train.updates_per_batch (1025) must be at most 1024: 128 prompts x 8 samples = 1024 rollouts to divide",
  ],
  [
    "algo: { advantage: { is_correction_threshold: [5, 0.5] } }",
    47,
    "error",
    "algo.advantage.is_correction_threshold must rise, not [5, 0.5]: try [0.5, 5]",
  ],
  [
    "algo: { advantage: { is_correction_level: off } }",
    43,
    "error",
    "algo.advantage.is_correction_level off trains off-policy rows uncorrected, since train.max_staleness is 1: " +
      "set it to token, or that to 0",
  ],
  [
    "algo: { advantage: { is_correction_threshold: [0.5, 0.1], is_correction_gating: tv, is_correction_mode: clip } }",
    105,
    "error",
    "algo.advantage.is_correction_mode must be mask with algo.advantage.is_correction_gating tv, not clip",
  ],
  [
    "algo: { advantage: { is_correction_gating: binary_kl } }",
    44,
    "error",
    "algo.advantage.is_correction_threshold must end below 1 with algo.advantage.is_correction_gating binary_kl, " +
      "not at 5: try [0.01, 0.05]",
  ],
  [
    "run: { deterministic: true }\ntrain: { agent_path: a.ts, max_staleness: 0 }\nalgo: { dynamic_filtering: refill }",
    23,
    "error",
    "run.deterministic needs algo.dynamic_filtering drop: which groups a budget replaces is chance",
  ],
  [
    "algo: { kl: { init_coef: 0.1, use_loss: false, estimator: k3 } }",
    59,
    "warning",
    "algo.kl.estimator k3 in the reward is not the gradient of the KL: take k1, or use_loss",
  ],
  [
    "algo: { kl: { target: 0.1 } }",
    23,
    "warning",
    "algo.kl.target does nothing while algo.kl.init_coef is 0: raise that, or leave this out",
  ],
  [
    "algo: { advantage: { estimator: pass_k, pass_k: 8 } }",
    49,
    "error",
    "algo.advantage.pass_k (8) must be below rollout.n_samples_per_prompt (8)",
  ],
  // case C2
  [
    "rollout: { n_samples_per_prompt: 1 }\nalgo: { advantage: { estimator: reinforce }, dynamic_filtering: drop }",
    34,
    "error",
    "rollout.n_samples_per_prompt must be at least 2, not 1: algo.dynamic_filtering drop compares the rollouts of a " +
      "prompt, and one alone has no advantage",
  ],
  [
    "critic: { model_name_or_path: c }",
    31,
    "warning",
    "critic.model_name_or_path does nothing with algo.advantage.estimator reinforce_baseline: gae reads it",
  ],
  [
    "actor: { model_name_or_path: model, freezing_steps: 3 }\n" +
      "algo: { advantage: { estimator: gae } }\nrun: { steps: 3 }",
    53,
    "error",
    "actor.freezing_steps (3) must be below run.steps (3): the policy is never trained",
  ],
  [
    "algo: { advantage: { estimator: on_policy_distill }, kl: { init_coef: 1, use_loss: false, estimator: k1 } }",
    33,
    "error",
    "algo.advantage.estimator on_policy_distill needs ref.model_name_or_path: the teacher, a model with the policy's " +
      "tokenizer",
  ],
  [
    "algo: { advantage: { estimator: on_policy_distill }, kl: { init_coef: 1, estimator: k1 } }\n" +
      "ref: { model_name_or_path: t }",
    33,
    "error",
    "algo.advantage.estimator on_policy_distill needs algo.kl.use_loss false: the KL to the teacher is its reward",
  ],
  ["reward: { clip_range: [1, 1] }", 23, "error", "reward.clip_range must rise, not [1, 1]: try [-10, 10]"],
  ["eval: { steps: 5 }", 16, "warning", "eval.steps does nothing without eval.dataset"],
  [
    "data: { prompt_dataset: [a.jsonl, b.csv], prompt_probs: [1, 2, 3] }",
    57,
    "error",
    "data.prompt_probs has 3 weights, data.prompt_dataset 2 files: give each its own",
  ],
  [
    "data: { prompt_dataset: a.jsonl, prompt_probs: [1, 2] }",
    48,
    "error",
    "data.prompt_probs has 2 weights, data.prompt_dataset 1 file: give each its own",
  ],
  [
    "data: { prompt_dataset: [/a.jsonl, /b.csv, /x/../a.jsonl] }",
    25,
    "error",
    "data.prompt_dataset names /a.jsonl twice: name each file once, and give it more weight with data.prompt_probs",
  ],
  [
    "ckpt: { output_dir: model }",
    21,
    "error",
    "ckpt.output_dir is actor.model_name_or_path: the export would overwrite the model it starts from",
  ],
  // case E1
  [
    `${train}, max_tokens_per_device: 2047 }`,
    55,
    "error",
    "train.max_tokens_per_device (2047) is below data.max_len (2048), and a row is never cut: raise it to 2048, " +
      "or lower data.max_len to 2047",
  ],
  [
    `${train}, max_tokens_per_device: 511 }\nfsdp: { cp_size: 4 }\n${actor}, devices_per_node: 4 }`,
    55,
    "error",
    "train.max_tokens_per_device (511 x fsdp.cp_size 4 = 2044) is below data.max_len (2048), and a row is never " +
      "cut: raise it to 512, or lower data.max_len to 2044",
  ],
  [
    "fsdp: { ep_size: 8 }\nactor: { model_name_or_path: m, devices_per_node: 3, num_nodes: 2 }\nlauncher: { kind: ray }",
    18,
    "error",
    "fsdp.ep_size (8) must divide the 2 nodes x 3 devices = 6 ranks: try 6",
  ],
  [`${actor}, num_nodes: 2 }`, 48, "error", "actor.num_nodes (2) needs launcher.kind ray or slurm: local has one node"],
  [
    "fsdp: { cp_size: 4 }\nactor: { model_name_or_path: m, devices_per_node: 6 }",
    18,
    "error",
    "fsdp.cp_size (4) must divide the 6 ranks: try 3 or 6",
  ],
  [
    "fsdp: { reshard_after_forward: true }\nactor: { model_name_or_path: m, gradient_checkpoint: none }",
    32,
    "error",
    "actor.gradient_checkpoint none keeps gathered weights: fsdp.reshard_after_forward cannot be true; leave it out, " +
      "or take gradient_checkpoint selective",
  ],
  [
    "actor: { model_name_or_path: m, devices_per_node: 6 }\nrollout: { batch_size: 2, n_samples_per_prompt: 2 }",
    51,
    "warning",
    "a step has 4 rows (4 rollouts / train.updates_per_batch 1) for 6 ranks: 2 would have nothing to do",
  ],
  [
    "engine: { cache_tokens: 2055, page_size: 8 }\ndata: { prompt_dataset: a, max_len: 2049 }",
    25,
    "error",
    "engine.cache_tokens (2055) must be at least 2056: one sequence takes 2049 tokens (data.max_len) in pages of 8",
  ],
  [
    "actor: { model_name_or_path: m, lora: { alpha: 8 } }",
    48,
    "warning",
    "actor.lora.rank 0 trains all weights, whatever else actor.lora says: try 16",
  ],
  [
    "ref: { model_name_or_path: other }",
    28,
    "warning",
    "ref.model_name_or_path does nothing while algo.kl.init_coef is 0: raise that, or leave this out",
  ],
  [
    `${train}, agent_command: [agent] }`,
    47,
    "error",
    "train.agent_path and train.agent_command each name an agent\n  fix: leave one of them out",
  ],
  [
    `${train}, grader_command: [grade] }`,
    48,
    "error",
    "train.grader_command grades what train.agent_command did; an agent's class returns its reward itself",
  ],
];

describe("one wrong recipe for each guardrail", () => {
  test.each(wrong)("%s", (lines, column, severity, message) => {
    expect(judge(lines)).toEqual([[column, severity, message]]);
  });

  test("every guardrail is among them, or the recipe that lacks everything", () => {
    const fired = [
      ...wrong.map(([lines]) => recipeWith(lines)),
      "",
      `${recipeWith("")}${off}\nfsdp: { param_dtype: bf16 }`,
    ]
      .flatMap((text) => diagnose(text, "r.yaml"))
      .map(({ rule }) => rule);
    expect([...guardrailRules.keys()].filter((name) => !fired.includes(name))).toEqual([]);
  });

  test("an edit that a finding offers makes it go away", () => {
    let edits = 0;
    for (const [lines] of wrong) {
      const text = recipeWith(lines);
      const [found] = diagnose(text, "r.yaml");
      if (!found?.fix) continue;
      const rows = text.split("\n");
      const { range, newText } = found.fix;
      const row = rows[range.start.line]!;
      rows[range.start.line] = row.slice(0, range.start.character) + newText + row.slice(range.end.character);
      const after = diagnose(rows.join("\n"), "r.yaml").filter(
        ({ rule, severity }) => severity === "error" || rule === found.rule,
      );
      expect(after, `${lines} with ${found.fix.title}`).toEqual([]);
      edits++;
    }
    expect(edits).toBeGreaterThan(15);
  });
});

/** For each guardrail the nearest that it allows. */
const allowed: Record<string, string> = {
  required: "",
  exportOverSource: "ckpt: { output_dir: model2 }",
  promptWeights: "data: { prompt_dataset: [a.jsonl, b.csv], prompt_probs: [1, 0.5] }",
  promptFileTwice: "data: { prompt_dataset: [a.jsonl, b.csv] }",
  bestMetric: "ckpt: { best_metric_key: math/pass@4 }\neval: { n_samples_per_prompt: 4, temperature: 1, pass_k: [4] }",
  evalPassK: "eval: { dataset: b.jsonl, n_samples_per_prompt: 4, temperature: 0.1, pass_k: [1, 4] }",
  curriculum: "data: { prompt_dataset: a.jsonl, curriculum: solve_rate }",
  cacheSize: "engine: { cache_tokens: 2048, page_size: 8 }",
  attached: "engine: { count: 2, urls: [http://a:1, http://b:1] }",
  replicasOrStages: "engine: { kind: vllm }\nvllm: { data_parallel_size: 2, tensor_parallel_size: 2 }",
  draftedPrefixes: "engine: { kind: vllm }\nvllm: { mtp_num_speculative_tokens: 1, enable_prefix_caching: false }",
  embeddedCache: "engine: { kind: vllm, max_num_seqs: 8 }",
  replyLength: "rollout: { max_new_tokens: 2047 }\neval: { max_new_tokens: 2047 }",
  temperature: "rollout: { temperature: 0.01 }",
  topP: "rollout: { top_p: 1.0 }\neval: { dataset: b.jsonl, top_p: 0.9, temperature: 0.7, n_samples_per_prompt: 4 }",
  groupSize: "rollout: { n_samples_per_prompt: 1 }\nalgo: { advantage: { estimator: flash_reinforce } }",
  inFlight: "rollout: { max_in_flight: 256 }",
  minGroup: "rollout: { min_group: 2 }",
  evalEngines: "engine: { count: 2 }\neval: { engines: 1 }",
  deterministic: `run: { deterministic: true }\nalgo: { dynamic_filtering: drop }\n${train}, max_staleness: 0 }`,
  updates: `${train}, updates_per_batch: 1024 }`,
  oneMachine: `${actor}, num_nodes: 2 }\nlauncher: { kind: slurm }`,
  idleRanks:
    "actor: { model_name_or_path: m, devices_per_node: 8 }\nfsdp: { cp_size: 2 }\n" +
    "rollout: { batch_size: 2, n_samples_per_prompt: 2 }",
  meshSize: "actor: { model_name_or_path: m, devices_per_node: 8 }\nfsdp: { ep_size: 8, cp_size: 4 }",
  keptWeights:
    "fsdp: { reshard_after_forward: true }\nactor: { model_name_or_path: m, gradient_checkpoint: selective }",
  rowFits: `${train}, max_tokens_per_device: 2048 }`,
  clipRange: "reward: { clip_range: [0, 0.1] }",
  correctionGating: "algo: { advantage: { is_correction_level: seq, is_correction_mode: clip } }",
  correctionOff: `${train}, max_staleness: 0 }\n${off}`,
  correctionOffInBf16: "fsdp: { param_dtype: bf16 }\nengine: { dtype: bf16 }",
  correctionThreshold: "algo: { advantage: { is_correction_gating: tv, is_correction_threshold: [0.5, 0.05] } }",
  oneAgent: "train: { agent_command: [agent] }",
  graderOfCommand: "train: { agent_command: [agent], grader_command: [grade] }",
  klEstimator: "algo: { kl: { init_coef: 0.1, use_loss: false, estimator: k1 } }",
  loraUnused: "actor: { model_name_or_path: m, lora: { rank: 1, alpha: 2, target_modules: [q_proj] } }",
  passK: "algo: { advantage: { estimator: pass_k, pass_k: 7 } }",
  criticUnused: "critic: { model_name_or_path: c }\nalgo: { advantage: { estimator: gae } }",
  freezingSteps:
    "run: { steps: 3 }\nactor: { model_name_or_path: m, freezing_steps: 2 }\nalgo: { advantage: { estimator: gae } }",
  distillation:
    "ref: { model_name_or_path: t }\n" +
    "algo: { advantage: { estimator: on_policy_distill }, kl: { init_coef: 1, use_loss: false, estimator: k1 } }",
  referenceUnused: "ref: { model_name_or_path: other }\nalgo: { kl: { init_coef: 0.1 } }",
  evaluationWithoutData: "eval: { dataset: b.jsonl, steps: 5 }",
};

test("docs/guardrails.md lists every guardrail, and none that is not there", () => {
  const listed = [...read("docs/guardrails.md").matchAll(/^\| `(\w+)` \| (.+) \| (refused|warned) \|$/gm)];
  const rows = [...guardrailRules].map(([name, { holds, severity = "error" }]) => {
    return [name, holds, severity === "error" ? "refused" : "warned"];
  });
  expect(listed.map(([, ...row]) => row)).toEqual(rows.sort(([a], [b]) => (a! < b! ? -1 : 1)));
  const named = [...read("docs/guardrails.md").matchAll(/`([a-z]+[A-Z]\w+)`/g)].map((match) => match[1]!);
  expect(named.filter((name) => !guardrailRules.has(name))).toEqual([]);
});

describe("what each guardrail allows", () => {
  test.each([...guardrailRules.keys()])("%s", (name) => {
    expect(allowed[name]).toBeDefined();
    expect(judge(allowed[name]!)).toEqual([]);
  });

  test("a guardrail names every key that it reads, and keys that exist", () => {
    const texts = [...wrong.map(([lines]) => lines), ...Object.values(allowed)].map(recipeWith);
    const recipes = ["", ...texts].map((text) => readEdited(text, "r.yaml").recipe);
    for (const [name, { keys, check, holds }] of guardrailRules) {
      expect(holds, name).toMatch(/^\S.*\.$/);
      expect(keys.filter((key) => !recipeKeys.has(key))).toEqual([]);
      for (const verb of ["run", "sft", "eval"] as const) {
        for (const given of recipes) {
          const read = new Set<string>();
          check(watched(given, "", read) as Recipe, verb);
          expect(
            [...read].filter((key) => !keys.includes(key)),
            name,
          ).toEqual([]);
        }
      }
    }
    expect(guardrailsOf("data.max_len").sort()).toEqual(["cacheSize", "replyLength", "rowFits"]);
    expect(guardrailsOf("run.seed")).toEqual([]);
  });

  test("correction off with several updates a batch is refused on-policy too", () => {
    const off = "algo: { advantage: { is_correction_level: off } }";
    const line = `${train}, max_staleness: 0, updates_per_batch: 2 }\n${off}`;
    const [found] = diagnose(`${right.replace(/train:.*\n/, "\n")}${line}`, "r.yaml");
    expect(found!.message).toContain("since train.updates_per_batch is 2: set it to token, or that to 1");
  });

  test("correction off is refused in bf16, on-policy too", () => {
    const off = "algo: { advantage: { is_correction_level: off } }";
    const text = `${right.replace("agent.ts", "agent.ts, max_staleness: 0")}${off}`;
    expect(diagnose(text, "r.yaml")).toEqual([]);
    for (const [line, rounding] of [
      ["fsdp: { param_dtype: bf16 }", "fsdp.param_dtype"],
      ["engine: { dtype: bf16 }", "engine.dtype"],
    ]) {
      const [found] = diagnose(`${text}\n${line}`, "r.yaml");
      expect(found!.message).toBe(
        "algo.advantage.is_correction_level off leaves bf16's rounding uncorrected: " +
          `set it to token, or ${rounding} to float32`,
      );
    }
  });

  test("bounds of single keys are the schema's", () => {
    const messages = (line: string) => diagnose(`${right}${line}`, "r.yaml").map(({ message }) => message);
    expect(messages("actor: { dual_clip: 1 }").join()).toContain("duplicate key");
    const withActor = (keys: string) =>
      diagnose(right.replace("model }", `model, ${keys} }`), "r.yaml").map(({ message }) => message);
    expect(withActor("dual_clip: 1")).toEqual(["actor.dual_clip must be a number above 1 or null, not 1"]);
    expect(withActor("adam: { betas: [0.9, 1] }")).toEqual([
      "actor.adam.betas must be a list of 2: a number of at least 0 and below 1, a number of at least 0 and below 1, " +
        "not [ 0.9, 1 ]",
    ]);
  });

  test("a finding that rests on a wrong value is left out", () => {
    const found = diagnose(`${right}rollout: { batch_size: x, max_in_flight: 4 }`, "r.yaml");
    expect(found.map(({ code }) => code)).toEqual(["wrong-value"]);
  });

  test("sft is not asked about rollouts", () => {
    const sft =
      "actor: { model_name_or_path: m }\ndata: { prompt_dataset: a, output_key: b }\nrollout: { top_p: 0.5 }\n";
    expect(diagnose(sft, "r.yaml")).toEqual([]);
  });
});

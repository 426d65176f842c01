import { describe, expect, test } from "vitest";
import { diagnose } from "../index.ts";

const right = `actor: { model_name_or_path: model }
data: { prompt_dataset: a.jsonl }
train: { agent_path: agent.ts }
`;

/** `[column on line 4, severity, message]` of what the guardrails say of one more line. */
function judge(line: string): [number, string, string][] {
  const section = line.slice(0, line.indexOf(":"));
  const given = right.split("\n").map((other) => (other.startsWith(`${section}:`) ? "" : other));
  const text = given.join("\n") + line;
  return diagnose(text, "r.yaml", { environment: {} }).map(({ range, severity, message, code }) => {
    expect(code).toBe("guardrail");
    expect(range.start.line).toBe(3);
    return [range.start.character + 1, severity, message];
  });
}

const train = "train: { agent_path: agent.ts";

describe("one wrong recipe for each guardrail", () => {
  test.each([
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
    [
      "rollout: { timeout: 60 }",
      21,
      "warning",
      "rollout.turn_timeout (120 s) is longer than a whole episode's rollout.timeout (60 s)",
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
      "rollout: { max_in_flight: 127 }",
      27,
      "error",
      "rollout.max_in_flight (127) must be at least rollout.batch_size (128): a batch could never fill",
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
      "algo: { advantage: { is_correction_level: seq, is_correction_mode: clip } }",
      68,
      "error",
      "algo.advantage.is_correction_mode must be mask at level seq, not clip",
    ],
    [
      "algo: { advantage: { is_correction_level: geo, is_correction_mode: trunc } }",
      68,
      "error",
      "algo.advantage.is_correction_mode must be mask at level geo, not trunc",
    ],
    [
      "algo: { kl: { init_coef: 0.1, estimator: k1 } }",
      42,
      "warning",
      "algo.kl.estimator k1 as a loss term has a gradient of mean zero, so it holds nothing back: take k2 or k3",
    ],
    ["reward: { clip_range: [1, 1] }", 23, "error", "reward.clip_range must rise, not [1, 1]: try [-10, 10]"],
    ["eval: { steps: 5 }", 16, "warning", "eval.steps does nothing without eval.dataset"],
    [
      "eval: { dataset: b.jsonl, n_samples_per_prompt: 4 }",
      49,
      "warning",
      "eval.n_samples_per_prompt (4) repeats the same greedy answer: raise eval.temperature above 0",
    ],
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
  ])("%s", (line, column, severity, message) => {
    expect(judge(line)).toEqual([[column, severity, message]]);
  });

  test.each([
    "rollout: { max_in_flight: 128, min_group: 2 }",
    "data: { prompt_dataset: [a.jsonl, b.csv], prompt_probs: [1, 0.5] }",
    "data: { prompt_dataset: [a.jsonl, b.csv] }",
    "eval: { dataset: b.jsonl, top_p: 0.9, temperature: 0.7, n_samples_per_prompt: 4, steps: 5 }",
    "algo: { kl: { estimator: k1 } }",
    "algo: { advantage: { is_correction_level: token, is_correction_mode: clip } }",
    `${train}, updates_per_batch: 1024 }`,
    `${train}, max_staleness: 0 }\nalgo: { advantage: { is_correction_level: off } }`,
  ])("allowed: %s", (line) => {
    expect(judge(line)).toEqual([]);
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

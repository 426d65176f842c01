import { describe, expect, it } from "vitest";
import { readEdited } from "../../recipe/index.ts";
import { vllmCommand } from "./command.ts";

function wordsOf(sections: object, init: "weights" | "random" = "random"): string[] {
  const base = { actor: { model_name_or_path: "m" }, data: { prompt_dataset: "a.jsonl", max_len: 4096 } };
  const text = JSON.stringify({ ...base, train: { agent_path: "a.ts" }, ...sections });
  const { recipe } = readEdited(text, "/r/a.yaml", { environment: {} });
  return vllmCommand(recipe, "/models/m", init).words;
}

const after = (words: string[], flag: string) => words[words.indexOf(flag) + 1];

describe("vllmCommand", () => {
  it("serves the folder, with log-probabilities after temperature, under the recipe's limits", () => {
    const words = wordsOf({ engine: { kind: "vllm", dtype: "bf16", max_num_seqs: 64 }, run: { seed: 7 } });
    expect(words.slice(0, 3)).toEqual(["vllm", "serve", "/models/m"]);
    const flags = ["--logprobs-mode", "--max-model-len", "--max-num-seqs", "--dtype", "--seed", "--load-format"];
    expect(flags.map((flag) => after(words, flag))).toEqual([
      "processed_logprobs",
      "4096",
      "64",
      "bfloat16",
      "7",
      "dummy",
    ]);
    expect(words).not.toContain("--enforce-eager");
    expect(words).toContain("--enable-prefix-caching");
    expect(words.filter((word) => /speculative|expert|attention-backend|transfer/.test(word))).toEqual([]);
  });

  it("reads the folder's weights where no sync will bring any", () => {
    expect(wordsOf({ engine: { kind: "vllm" } }, "weights")).not.toContain("--load-format");
    // To the drafting layer none does.
    const drafting = { mtp_num_speculative_tokens: 1, enable_prefix_caching: false };
    expect(wordsOf({ engine: { kind: "vllm" }, vllm: drafting })).not.toContain("--load-format");
  });

  it("has each of the recipe's keys as vLLM's flag, and its raw words last", () => {
    const words = wordsOf({
      engine: { kind: "vllm" },
      vllm: {
        command: ["python3", "-m", "vllm.entrypoints.cli.main", "serve"],
        tensor_parallel_size: 4,
        pipeline_parallel_size: 2,
        data_parallel_size: 3,
        enable_expert_parallel: true,
        gpu_memory_utilization: 0.85,
        enable_prefix_caching: false,
        enforce_eager: true,
        attention_backend: "FLASH_ATTN",
        mtp_num_speculative_tokens: 2,
        sync_backend: "nccl",
        extra_args: ["--block-size", "32"],
      },
    });
    expect(words.slice(0, 5)).toEqual(["python3", "-m", "vllm.entrypoints.cli.main", "serve", "/models/m"]);
    const sizes = ["--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"];
    expect(sizes.map((flag) => after(words, flag))).toEqual(["4", "2", "3"]);
    expect(after(words, "--gpu-memory-utilization")).toBe("0.85");
    expect(after(words, "--attention-backend")).toBe("FLASH_ATTN");
    const speculative = { method: "mtp", num_speculative_tokens: 2 };
    expect(JSON.parse(after(words, "--speculative-config")!)).toEqual(speculative);
    expect(JSON.parse(after(words, "--weight-transfer-config")!)).toEqual({ backend: "nccl" });
    for (const flag of ["--enable-expert-parallel", "--no-enable-prefix-caching", "--enforce-eager"]) {
      expect(words).toContain(flag);
    }
    expect(words.slice(-2)).toEqual(["--block-size", "32"]);
  });
});

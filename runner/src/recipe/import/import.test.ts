import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { parse } from "yaml";
import { diagnose } from "../index.ts";
import { importScript } from "./import.ts";
import { shellCommands } from "./shell.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-import-"));
afterAll(() => rmSync(folder, { recursive: true }));

const words = (script: string) => shellCommands(script).map((command) => command.map(({ text }) => text));

// Each right side is what `printf '[%s]' …` of Bash 5 hands over, with `env -i`.
describe("words as a shell makes them", () => {
  test.each([
    ["a b  c", [["a", "b", "c"]]],
    ["a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]],
    ["a'b'\"c\"d", [["abcd"]]],
    ["a '' \"\"", [["a", "", ""]]],
    ["a \\\n  b \\\n  c", [["a", "b", "c"]]],
    ["a b\\\nc", [["a", "bc"]]],
    ["a # b\nc#d", [["a"], ["c#d"]]],
    ["a; b && c | d & e", [["a"], ["b"], ["c"], ["d"], ["e"]]],
    ["X=1 Y='2 3'\necho $X \"$Y\" $Y", [["echo", "1", "2 3", "2", "3"]]],
    [`X=1; X=2; echo \${X}$X`, [["echo", "22"]]],
    ["X='$Y'; echo \"$X\" '$X' \\$X \"\\$X\"", [["echo", "$Y", "$X", "$X", "$X"]]],
    ['X="a\\b"; echo "$X"', [["echo", "a\\b"]]],
    ["export A=1 B=2\necho $A$B", [["echo", "12"]]],
    ["X=; echo $X a", [["echo", "a"]]],
    ['X=; echo "$X" a', [["echo", "", "a"]]],
    [
      `echo \${X:-7} \${Y-a}; : \${X:=8}; echo $X`,
      [
        ["echo", "7", "a"],
        [":", "8"],
        ["echo", "8"],
      ],
    ],
    [`A=1; echo "\${X:-"b c"}" \${Y:-$A/d}`, [["echo", "b c", "1/d"]]],
    [`A=(1 '2 3'\n 4 # five\n)\necho "\${A[@]}"`, [["echo", "1", "2 3", "4"]]],
    [`A=(1)\nA+=(2)\necho \${A[@]}`, [["echo", "1", "2"]]],
    ["A=(1 2)\necho $A", [["echo", "1"]]],
    ["X=a\nX+=b\necho $X", [["echo", "ab"]]],
    ["echo a > out 2>&1 < in b", [["echo", "a", "b"]]],
    ["cat <<'E' > f\nX=1 --no\n  E\nE\necho b", [["cat"], ["echo", "b"]]],
    ["if true; then X=3; fi\necho $X", [["true"], ["echo", "3"]]],
    [
      "set -ex\r\necho a\r\n",
      [
        ["set", "-ex"],
        ["echo", "a"],
      ],
    ],
    ["", []],
  ] as [string, string[][]][])("%j", (script, expected) => {
    expect(words(script)).toEqual(expected);
  });

  test("what only running it would tell is marked, and the environment becomes a reference", () => {
    const [command] = shellCommands(`a "$(date '+(%s)')" \`id\` $1 x$HOME`);
    expect(command!.map(({ unknown }) => unknown)).toEqual([[], ["$(date '+(%s)')"], ["`id`"], ["$1"], []]);
    expect(command!.at(-1)!.text).toBe(`x\${env:HOME}`);
  });

  test("what is not known stays so through variables and lists, for its own word alone", () => {
    const [command] = shellCommands(`L=$(date +x); A=(1 x$L); A+=(2)\na "\${A[@]}" \${D:?say it}/b`);
    expect(command!.map(({ text, unknown }) => [text, unknown])).toEqual([
      ["a", []],
      ["1", []],
      ["x", ["$(date +x)"]],
      ["2", []],
      [`\${env:D}/b`, []],
    ]);
  });

  test("no text makes it throw or hang", () => {
    const bits = fc.constantFrom(
      ..."'\"$(){}`\\<>&|;#=[]@:-ab1 \t\n\r\u00a0",
      "<<E\n",
      `\${A[@]}`,
      "A=(",
      "$((",
      "\\\n",
    );
    fc.assert(
      fc.property(fc.array(bits, { maxLength: 40 }), (parts) => {
        for (const word of shellCommands(parts.join("")).flat()) expect(word.line).toBeGreaterThan(0);
      }),
      { numRuns: 2000 },
    );
    const long = `${"a 'b' \\\n".repeat(50_000)}\nc`;
    expect(shellCommands(long).at(-1)).toEqual([{ text: "c", line: 50_002, unknown: [] }]);
  });
});

const script = `#!/bin/bash
set -x
# The model and its data.
MODEL=/models/Qwen3-4B
LR=1e-5   # as in the paper
SAVE="$HOME/out"; mark() { touch ${folder}/ran; }
mark
touch ${folder}/ran
LOGGING=(--logger.wandb.key "$WANDB_TOKEN" --logger.logging_steps 1)

ray job submit --address="http://127.0.0.1:8265" -- python3 -m molt.cli.train_rl_ray \\
   --actor.model_name_or_path \${MODEL} --actor.adam.lr=$LR --actor.adam.betas 0.9 0.98 \\
   --actor.num_gpus_per_node 4 --actor.optim adam \\
   --actor.eps_clip_low_high 0.2 0.27 --reward.clip_range -5 5 \\
   --data.prompt_dataset 'a b.jsonl',c.jsonl --data.prompt_probs 0.3,0.7 \\
   --data.input_key prompt --data.apply_chat_template \\
   --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 256 \\
   --algo.advantage.estimator grpo --algo.advantage.is_correction_level token \\
   --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 \\
   --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --vllm.enforce_eager --vllm.block_size 32 \\
   --train.async_queue_size 2 --train.max_tokens_per_gpu 8192 --train.seed 7 \\
   --train.agent_path agents/math.py --train.num_episodes 3 \\
   --ckpt.output_dir $SAVE --fsdp.tp_size 2 --actor.loss_mode gspo \\
   --eval.steps 5 --eval.dataset $(ls eval*.jsonl) --eval.eval_at_start \\
   --rollout.max_new_tokns 5 "\${LOGGING[@]}" > log.txt 2>&1
`;

test("CISPO's ceiling of the ratio becomes what it is above 1", () => {
  const clip = "--actor.loss_mode cispo --actor.eps_clip_low_high 0.2 1.28";
  const { yaml } = importScript(`python3 -m molt.cli.train_rl_ray ${clip}\n`, "train.sh");
  expect(parse(yaml).actor).toMatchObject({ loss_mode: "cispo", eps_clip_low_high: [0.2, 0.28] });
});

describe("a script of the original", () => {
  const { verb, yaml, left } = importScript(script, "train.sh");

  test("becomes a recipe, each value with its line", () => {
    expect(verb).toBe("run");
    expect(parse(yaml)).toEqual({
      run: { seed: 7 },
      actor: {
        model_name_or_path: "/models/Qwen3-4B",
        adam: { lr: 1e-5, betas: [0.9, 0.98] },
        eps_clip_low_high: [0.2, 0.27],
        devices_per_node: 4,
        optimizer: "adamw",
        loss_mode: "gspo",
      },
      fsdp: { param_dtype: "bf16" },
      data: { prompt_dataset: ["a b.jsonl", "c.jsonl"], prompt_probs: [0.3, 0.7], input_key: "prompt", epochs: 3 },
      rollout: { batch_size: 128, n_samples_per_prompt: 8 },
      train: { max_staleness: 2, updates_per_batch: 4, max_tokens_per_device: 8192 },
      algo: {
        advantage: { estimator: "grpo", is_correction_level: "token" },
        kl: { estimator: "k1", use_loss: false },
        dynamic_filtering: "refill",
      },
      reward: { clip_range: [-5, 5] },
      engine: { count: 4 },
      vllm: { tensor_parallel_size: 2, enforce_eager: true },
      eval: { steps: 5, at_start: true },
      ckpt: { save_steps: -1, output_dir: "$" + "{env:HOME}/out" },
      logger: { logging_steps: 1 },
    });
    expect(yaml).toMatch(/^# molt-runner recipe, imported from train.sh\n/);
    expect(yaml).toContain("    lr: 0.00001  # line 12\n");
    expect(yaml).toContain("  param_dtype: bf16  # the original's default\n");
    const found = diagnose(yaml, "/r/train.yaml", { environment: { HOME: "/home" } });
    expect(found.filter(({ severity }) => severity === "error").map(({ message }) => message)).toEqual([
      "train.agent_path is missing: run needs the file whose default export is the agent's class",
    ]);
  });

  test("what has no counterpart is listed with its line and why; no secret is among it", () => {
    expect(left.map(({ line, flag, value, why }) => `${line} ${flag} ${value}: ${why}`)).toEqual([
      "16 --data.apply_chat_template : messages always go through the template",
      "19 --algo.dynamic_filtering_range 0,1: a group counts when its rewards differ",
      "20 --vllm.block_size 32: vLLM's own options go into vllm.extra_args, as its command line writes them",
      "22 --train.agent_path agents/math.py: an agent is TypeScript here: write one and name it with train.agent_path",
      "23 --fsdp.tp_size 2: not in this version",
      "24 --eval.dataset : import executes nothing, and so does not know $(ls eval*.jsonl)",
      "25 --rollout.max_new_tokns 5: no key corresponds to it",
      "25 --logger.wandb.key …: W&B's package reads WANDB_API_KEY; logger.wandb.project turns it on",
    ]);
  });

  test("nothing of it was executed", () => expect(existsSync(join(folder, "ran"))).toBe(false));

  test("rows that do not divide into steps are said, with the numbers", () => {
    const odd = importScript(script.replace("--train.batch_size 256", "--train.batch_size 300"), "train.sh");
    expect(odd.left.at(-1)).toMatchObject({
      flag: "--train.batch_size",
      why: "1024 rollouts do not divide into steps of 300 rows: set train.updates_per_batch",
    });
  });
});

test("sft: its bare optimizer, its model and its passes; a flag in its own section", () => {
  const text = `torchrun --nproc_per_node 2 -m molt.cli.train_sft --model.model_name_or_path m --adam.lr 2e-5 \\
  --data.dataset d.jsonl --data.output_key reply --train.max_epochs 4 --lr_scheduler cosine --fsdp.param_dtype fp16
python -m molt.cli.train_rl_ray --actor.model_name_or_path m`;
  const { verb, yaml, left } = importScript(text, "sft.sh");
  expect(verb).toBe("sft");
  expect(parse(yaml)).toEqual({
    actor: { model_name_or_path: "m", adam: { lr: 2e-5 }, lr_scheduler: "cosine" },
    data: { prompt_dataset: "d.jsonl", output_key: "reply", epochs: 4 },
    train: { batch_size: 128 },
    ckpt: { save_steps: -1 },
  });
  expect(left.map(({ line, why }) => [line, why])).toEqual([
    [2, "fsdp.param_dtype must be one of float32, bf16, not 'fp16': did you mean 'bf16'?"],
    [3, "a recipe is one run: import a script of its own"],
  ]);
});

test("a command in quotes, as Slurm's scripts have it, is read as one", () => {
  const text = `M=/models/m\nsrun -N 2 bash -c "cd /x && \\\n python -m molt.cli.train_rl_ray
  --actor.model_name_or_path $M \\\n --train.seed \\$SEED --rollout.temperature '0.9'"`;
  const { yaml, left } = importScript(text.replace("_ray\n", "_ray "), "slurm.sh");
  expect(parse(yaml)).toMatchObject({
    run: { seed: `\${env:SEED}` },
    actor: { model_name_or_path: "/models/m" },
    rollout: { temperature: 0.9 },
  });
  expect(left.filter(({ line }) => line !== null)).toEqual([]);
});

test("a secret in the script is shown to nobody", () => {
  const { yaml, left } = importScript("python -m molt.cli.train_rl_ray --logger.wandb.key s3cr3t-0451", "a.sh");
  expect(JSON.stringify([yaml, left])).not.toContain("s3cr3t");
});

test("sizes that import does not know divide nothing", () => {
  const sizes = ["--train.batch_size $(nproc)", "--rollout.batch_size $N", "--rollout.batch_size x"];
  const whys = sizes.map((flag) => importScript(`python -m molt.cli.train_rl_ray ${flag}`, "a.sh").left.at(-1)!.why);
  expect(whys).toEqual([
    "import executes nothing, and so does not know $(nproc)",
    "the rollouts of a batch do not divide into steps of 128 rows: set train.updates_per_batch",
    "the rollouts of a batch do not divide into steps of 128 rows: set train.updates_per_batch",
  ]);
});

test("a script without the original is refused", () => {
  writeFileSync(join(folder, "other.sh"), "echo hello\n");
  expect(() => importScript("echo hello\n", "other.sh")).toThrow("this script never calls the Python original");
});

"""vLLM's side of decoding: one JSON request a line on standard input, one JSON answer a line.

    PYTHON runner/bench/vllm_side.py MODEL_FOLDER float32|bfloat16 MOST_SEQUENCES
"""

import json
import os
import sys
import time

os.environ.update(VLLM_CPU_KVCACHE_SPACE="2", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")

from vllm import LLM, SamplingParams  # noqa: E402  (it reads the environment as it is imported)


def processor_seconds(pid):
    """Of one process and those it started; the engine is one of them."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = [child for task in os.listdir(f"/proc/{pid}/task") for child in children_of(pid, task)]
    return own + sum(processor_seconds(child) for child in children)


def children_of(pid, task):
    return open(f"/proc/{pid}/task/{task}/children").read().split()


def main():
    # What the engine prints goes to standard error: standard output carries answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder, dtype, most = sys.argv[1:]
    llm = LLM(folder, dtype=dtype, max_model_len=1024, max_num_seqs=int(most), enable_prefix_caching=False)

    def generate(prompts, tokens):
        """Seconds, and processor seconds, of `tokens` for each prompt, log-probabilities included."""
        sampling = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0)
        begin, cpu = time.perf_counter(), processor_seconds(os.getpid())
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
        return time.perf_counter() - begin, processor_seconds(os.getpid()) - cpu

    for line in sys.stdin:
        request = json.loads(line)
        prompts = request["prompts"]
        first, first_cpu = generate(prompts, 1)
        whole, whole_cpu = generate(prompts, request["tokens"])
        answer = {"prompt": first, "decode": whole - first, "cpu": whole_cpu - first_cpu}
        print(json.dumps(answer), file=answers, flush=True)


# The engine is a process that imports this file again.
if __name__ == "__main__":
    main()

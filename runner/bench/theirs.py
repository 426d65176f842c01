"""transformers' side of decoding and training: one JSON request a line on standard input, one JSON answer a line.

    PYTHON runner/bench/theirs.py MODEL_FOLDER float32|bfloat16
"""

import json
import resource
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria

# No end of sequence, plain sampling over the whole vocabulary: every row runs to its last token.
SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0, "eos_token_id": None}


class TokenTimes(StoppingCriteria):
    """Notes when each token is there; stops nothing."""

    def __init__(self):
        self.times = []
        self.going_on = None

    def __call__(self, input_ids, scores, **_):
        self.times.append((time.perf_counter(), time.process_time()))
        if self.going_on is None:
            self.going_on = torch.zeros(input_ids.shape[0], dtype=torch.bool)
        return self.going_on


class Decoder:
    def __init__(self, folder, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self.model.generation_config = GenerationConfig(**SAMPLING)

    def answer(self, prompts, tokens):
        noted = TokenTimes()
        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, stopping_criteria=[noted]
            )
        assert out.shape[1] == ids.shape[1] + tokens == ids.shape[1] + len(noted.times)
        (first, first_cpu), (last, last_cpu) = noted.times[0], noted.times[-1]
        return {"prompt": first - begin, "decode": last - first, "cpu": last_cpu - first_cpu}


class Trainer:
    """Full logits, activations kept, fused AdamW. bfloat16 is autocast over float32 weights, as trainers have it."""

    def __init__(self, folder, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
        self.autocast = dtype == torch.bfloat16
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def answer(self, rows):
        ids = torch.tensor(rows)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        return {"seconds": seconds, "cpu": cpu, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main():
    folder, dtype = sys.argv[1], getattr(torch, sys.argv[2])
    sides = {"decode": Decoder, "train": Trainer}
    opened = {}
    for line in sys.stdin:
        request = json.loads(line)
        op = request.pop("op")
        torch.set_num_threads(request.pop("threads"))
        if op not in opened:
            opened[op] = sides[op](folder, dtype)
        print(json.dumps(opened[op].answer(**request)), flush=True)


main()

"""Loads an exported model with transformers and scores what an engine sampled from it.

Argument: the folder. Standard input: {"prompt": ids, "sampled": ids, "logprobs": numbers}, at temperature 1.
Prints one JSON line: the parameters, and the largest difference of a log-probability.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
given = json.load(sys.stdin)
ids = torch.tensor([given["prompt"] + given["sampled"]])
with torch.no_grad():
    logp = model(ids).logits[0].double().log_softmax(-1)
start = len(given["prompt"])
ours = torch.tensor(given["logprobs"], dtype=torch.float64)
theirs = logp[start - 1 : -1].gather(-1, ids[0, start:, None])[:, 0]
print(json.dumps({"parameters": model.num_parameters(), "gap": (ours - theirs).abs().max().item()}))

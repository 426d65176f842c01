"""Prints the mean negative log-probability, in nats, that transformers' model gives the masked tokens of all rows.

    python runner/test/check_loss.py FOLDER < rows.json      [{"tokens": [...], "mask": [...]}, ...]
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64)
total, count = 0.0, 0
for row in json.load(sys.stdin):
    tokens = torch.tensor(row["tokens"])
    with torch.no_grad():
        logprobs = model(tokens[None]).logits[0].log_softmax(-1)
    said = logprobs[:-1].gather(1, tokens[1:, None])[:, 0]
    mask = torch.tensor(row["mask"][1:]) == 1
    total -= said[mask].sum().item()
    count += int(mask.sum())
print(total / count)

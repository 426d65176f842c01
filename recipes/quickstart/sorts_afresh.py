"""How many prompts made afresh an exported model sorts, greedily, in transformers. Arguments: the folder, a seed.

Prints one JSON line: {"accuracy": 0.99, "prompts": 200}.
"""
import json
import random
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, seed = sys.argv[1], int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
draw = random.Random(seed)
prompts = ["".join(draw.sample("0123456789", draw.choice([3, 4, 5]))) for _ in range(200)]
right = 0
for digits in prompts:
    chat = [{"role": "user", "content": f"sort {digits}"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    answer = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    right += answer == "".join(sorted(digits))
print(json.dumps({"accuracy": right / len(prompts), "prompts": len(prompts)}))

"""Writes a random Qwen3 (30 million parameters) or Qwen3-MoE (62 million, 16 of them a token's), without a tokenizer.

    PYTHON runner/bench/random_model.py dense|mixture FOLDER
"""

import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

COMMON = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MIXTURE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 384, "norm_topk_prob": True}

kind, folder = sys.argv[1:]
torch.manual_seed(0)
if kind == "dense":
    model = Qwen3ForCausalLM(Qwen3Config(**COMMON))
else:
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON, **MIXTURE))
model.save_pretrained(folder)

"""Random models of every family, wide enough for packed weights, and what transformers says of one text: at each
position the log-probability of the next token, and of the likeliest one, in float64 and bfloat16. Written into the
folder given, one folder a model.

Run: python sampler_models.py FOLDER (torch 2.13, transformers 5.24)
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

COMMON = dict(
    vocab_size=1300, hidden_size=512, intermediate_size=768, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.06, bos_token_id=None, eos_token_id=None,
    pad_token_id=None,
)
CONFIGS = {
    "llama-biases": LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "qwen2-window-tied": Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=7, max_window_layers=1, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**COMMON, head_dim=72),
    # Every token takes every expert: in bfloat16 no two implementations choose alike.
    "qwen3-moe": Qwen3MoeConfig(
        **COMMON, head_dim=72, num_experts=3, num_experts_per_tok=3, moe_intermediate_size=384, norm_topk_prob=True),
}


def scored(model, tokens):
    logp = model(tokens[None]).logits[0].double().log_softmax(-1)
    return dict(next=logp[:-1].gather(1, tokens[1:, None])[:, 0].tolist(), top=logp.max(-1).values.tolist())


@torch.no_grad()
def make(folder, config, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager").eval()
    for p in model.parameters():
        if p.ndim == 1:
            p.add_(torch.randn(p.shape) * 0.2)
    model.save_pretrained(folder)
    tokens = torch.randint(0, COMMON["vocab_size"], (40,))
    expected = dict(tokens=tokens.tolist(), float64=scored(model.double(), tokens))
    expected["bf16"] = scored(model.bfloat16(), tokens)
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, config) in enumerate(CONFIGS.items()):
        make(Path(sys.argv[1]) / name, config, seed)

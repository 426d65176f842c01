"""Small random models of every family, and what transformers says of packed rows: log-probabilities and entropies, and
the gradient of every parameter, in float64, float32 and bfloat16. Written into the folder given, one folder a model.

Run: python families.py FOLDER (torch 2.13, transformers 5.24)
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

LENGTHS = [9, 3, 1, 9, 14]
COMMON = dict(
    vocab_size=53, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.25, bos_token_id=None, eos_token_id=None,
    pad_token_id=None,
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16)
CONFIGS = {
    "llama-llama3-biases": LlamaConfig(**COMMON, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True),
    "llama-linear-tied": LlamaConfig(
        **COMMON, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.5), tie_word_embeddings=True),
    "qwen2-yarn": Qwen2Config(**COMMON, rope_parameters=YARN),
    "qwen2-window-tied": Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=3, max_window_layers=1, tie_word_embeddings=True),
    "qwen3-yarn-window-biases": Qwen3Config(
        **COMMON, head_dim=12, rope_parameters=dict(**YARN, attention_factor=1.3, beta_fast=8.0), attention_bias=True,
        use_sliding_window=True, sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
}


def make_rows(generator):
    total = sum(LENGTHS)
    tokens = torch.randint(0, COMMON["vocab_size"], (total,), generator=generator)
    targets = tokens.roll(-1)
    targets[torch.tensor(LENGTHS).cumsum(0) - 1] = -1
    a, b = (torch.rand(total, generator=generator) * 2 - 1 for _ in range(2))
    return tokens, targets, a, b


def scored(config, weights, dtype, tokens, targets, a, b):
    """Outputs and gradients of one dtype, both as float64."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.load_state_dict(weights)
    logits = torch.cat([model(row[None]).logits[0] for row in tokens.split(LENGTHS)])
    logp = (logits if dtype == torch.float64 else logits.float()).log_softmax(-1)
    wanted = targets >= 0
    chosen = torch.where(wanted, logp.gather(1, targets.clamp(min=0)[:, None])[:, 0], 0)
    entropy = torch.where(wanted, -(logp.exp() * logp).sum(-1), 0)
    (a.to(logp.dtype) * chosen + b.to(logp.dtype) * entropy).sum().backward()
    gradients = {name: p.grad.double() for name, p in model.named_parameters()}
    return chosen.detach().double(), entropy.detach().double(), gradients


def make(folder, config, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    tokens, targets, a, b = make_rows(generator)
    expected = dict(
        tokens=tokens.tolist(), cu=[0, *torch.tensor(LENGTHS).cumsum(0).tolist()], targets=targets.tolist(),
        a=a.tolist(), b=b.tolist(), inverseFrequencies=model.model.rotary_emb.inv_freq.tolist(),
        ropeScale=float(model.model.rotary_emb.attention_scaling))
    for name, dtype in dict(float64=torch.float64, float32=torch.float32, bf16=torch.bfloat16).items():
        logp, entropy, gradients = scored(config, model.state_dict(), dtype, tokens, targets, a, b)
        expected[name] = dict(logp=logp.tolist(), entropy=entropy.tolist())
        folder.mkdir(parents=True, exist_ok=True)
        save_file({n: g.float().contiguous() for n, g in gradients.items()}, folder / f"{name}.safetensors")
    model.save_pretrained(folder)
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, config) in enumerate(CONFIGS.items()):
        make(Path(sys.argv[1]) / name, config, seed)
    print(json.dumps(list(CONFIGS)))

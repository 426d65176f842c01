"""Counts the parameters of models with transformers on the meta device: writes shapes.json beside it.

python runner/src/recipe/planner/make_shapes.py
"""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

here = Path(__file__).parent
models = here.parents[3] / "recipes" / "models"


def counts(config: dict) -> dict:
    family = config["model_type"]
    settings = {key: value for key, value in config.items() if key not in ("model_type", "architectures", "dtype")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    parameters = dict(model.named_parameters())
    experts = sum(p.numel() for name, p in parameters.items() if ".experts." in name)
    return {"total": sum(p.numel() for p in parameters.values()), "experts": experts}


# Small configs for what the public ones do not have: biases, dense layers among mixtures, no query latent.
base = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=5, num_attention_heads=4)
small = {
    "llama with biases": dict(
        base, model_type="llama", num_key_value_heads=2, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "qwen2": dict(base, model_type="qwen2", num_key_value_heads=2, tie_word_embeddings=False),
    "qwen3 with biases": dict(base, model_type="qwen3", num_key_value_heads=1, head_dim=16, attention_bias=True),
    "qwen3_moe with dense layers": dict(
        base, model_type="qwen3_moe", num_key_value_heads=2, head_dim=16, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=24, decoder_sparse_step=2, mlp_only_layers=[3], tie_word_embeddings=False,
    ),
    "mixtral": dict(
        base, model_type="mixtral", num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2,
        tie_word_embeddings=False,
    ),
    "deepseek_v3 without a query latent": dict(
        base, model_type="deepseek_v3", num_key_value_heads=4, n_routed_experts=8, n_shared_experts=2,
        num_experts_per_tok=2, moe_intermediate_size=24, first_k_dense_replace=2, q_lora_rank=None, kv_lora_rank=20,
        qk_nope_head_dim=12, qk_rope_head_dim=6, v_head_dim=10, tie_word_embeddings=False,
    ),
}  # fmt: skip
public = {path.stem: json.loads(path.read_text()) for path in sorted(models.glob("*.json"))}
entries = {name: {"config": config, **counts(config)} for name, config in {**public, **small}.items()}
(here / "fixtures" / "shapes.json").write_text(json.dumps(entries, indent=1) + "\n")

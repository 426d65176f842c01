"""Small random mixtures of experts, and what transformers says of packed rows, in float64: with the experts that its
routers choose, and with recorded ones (-1 keeps the choice) and a balance loss of each row. Written into the folder
given, one folder a model; gradients as checkpoints of the same names.

Run: python mixtures.py FOLDER (torch 2.13, transformers 5.24)
"""

import json
import sys
from pathlib import Path

import torch
from families import COMMON, LENGTHS, make_rows
from torch.nn.functional import linear, one_hot
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

MIXTURE = dict(**COMMON, head_dim=12, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20)
CONFIGS = {
    "qwen3": Qwen3MoeConfig(**MIXTURE),
    "qwen3-normed-dense-first-tied": Qwen3MoeConfig(
        **MIXTURE, norm_topk_prob=True, mlp_only_layers=[0], tie_word_embeddings=True, attention_bias=True),
    "qwen3-every-second-tied": Qwen3MoeConfig(
        **{**MIXTURE, "num_experts_per_tok": 3}, decoder_sparse_step=2, tie_word_embeddings=True),
    "mixtral-window": MixtralConfig(**COMMON, num_local_experts=4, sliding_window=5),
}


class Router:
    """In the place of one of transformers' routers: the same in the model's dtype, or with recorded routes."""

    def __init__(self, gate, config, layer, recorded, weights):
        self.gate, self.layer, self.recorded, self.weights = gate, layer, recorded, weights
        self.normed = getattr(config, "norm_topk_prob", True)
        self.count, self.per_token = gate.num_experts, gate.top_k
        self.row, self.balance, self.differing = 0, 0.0, 0

    def __call__(self, hidden):
        x = hidden.reshape(-1, hidden.shape[-1])
        logits = linear(x, self.gate.weight)
        p = logits.softmax(-1)
        live = p.topk(self.per_token).indices
        recorded = self.recorded.split(LENGTHS)[self.row][:, self.layer]
        chosen = torch.where(recorded >= 0, recorded, live)
        for t in range(len(x)):
            self.differing += len(set(recorded[t].tolist()) - set(live[t].tolist()) - {-1})
        f = one_hot(chosen, self.count).double().mean((0, 1))
        self.balance = self.balance + self.weights[self.row] * self.count * (f * p.mean(0)).sum()
        self.row += 1
        w = p.gather(1, chosen)
        return logits, w / w.sum(-1, keepdim=True) if self.normed else w, chosen


def gates_of(model):
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def scored(model, tokens, targets, a, b, folder, extra=lambda: 0.0):
    logits = torch.cat([model(row[None]).logits[0] for row in tokens.split(LENGTHS)])
    logp = logits.double().log_softmax(-1)
    wanted = targets >= 0
    chosen = torch.where(wanted, logp.gather(1, targets.clamp(min=0)[:, None])[:, 0], 0)
    entropy = torch.where(wanted, -(logp.exp() * logp).sum(-1), 0)
    ((a * chosen + b * entropy).sum() + extra()).backward()
    for p in model.parameters():
        p.data = p.grad.float()
    model.save_pretrained(folder)
    return dict(logp=chosen.tolist(), entropy=entropy.tolist())


def make(folder, config, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    model.save_pretrained(folder)
    weights = model.state_dict()

    def fresh():
        copy = AutoModelForCausalLM.from_config(config, dtype=torch.float64, experts_implementation="eager").eval()
        copy.load_state_dict(weights)
        return copy

    tokens, targets, a, b = make_rows(generator)
    live = fresh()
    gates = gates_of(live)
    routes = [[] for _ in gates]
    for seen, gate in zip(routes, gates):
        gate.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output[2]))
    expected = dict(live=scored(live, tokens, targets, a.double(), b.double(), folder / "live"))
    routes = torch.stack([torch.cat(seen) for seen in routes], 1)

    recorded = torch.rand(*routes.shape[:2], gates[0].num_experts, generator=generator).topk(routes.shape[2]).indices
    recorded[torch.rand(len(tokens), generator=generator) < 0.3] = -1
    balance = torch.rand(len(LENGTHS), generator=generator)
    replayed = fresh()
    routers = [
        Router(gate, config, layer, recorded, balance.double()) for layer, gate in enumerate(gates_of(replayed))]
    for router in routers:
        router.gate.forward = router
    expected["replayed"] = scored(
        replayed, tokens, targets, a.double(), b.double(), folder / "replayed",
        lambda: sum(router.balance for router in routers))
    expected.update(
        tokens=tokens.tolist(), cu=[0, *torch.tensor(LENGTHS).cumsum(0).tolist()], targets=targets.tolist(),
        a=a.tolist(), b=b.tolist(), routes=routes.flatten().tolist(), recorded=recorded.flatten().tolist(),
        weights=balance.tolist(), balance=sum(router.balance.item() for router in routers),
        differing=sum(router.differing for router in routers), compared=int((recorded >= 0).sum()))
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, config) in enumerate(CONFIGS.items()):
        make(Path(sys.argv[1]) / name, config, seed)

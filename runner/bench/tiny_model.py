"""Writes a tiny random Qwen3 with a tokenizer of 512 tokens and a chat template, the same on every machine.

    PYTHON runner/bench/tiny_model.py FOLDER
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = [f"{a}{b} {b}{c}{a} " for a in "tsrnlmd" for b in "aeiou" for c in "tsrnlmd"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": 512, "special_tokens": SPECIAL, "initial_alphabet": alphabet}
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(**options, show_progress=False))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    whole.chat_template = TEMPLATE
    return whole


def make_model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.05,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    return model


folder = sys.argv[1]
make_model().save_pretrained(folder)
make_tokenizer().save_pretrained(folder)

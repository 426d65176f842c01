"""Writes model/tokenizer.json and model/tokenizer_config.json: six special tokens, then printable ASCII, an id each.

Run with a Python that has `tokenizers`: python recipes/quickstart/make_tokenizer.py
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models

SPECIAL = ["<pad>", "<bos>", "<user>", "<asst>", "<tool>", "<end>"]
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<asst>' }}"
    "{% elif message['role'] == 'tool' %}{{ '<tool>' }}"
    "{% else %}{{ raise_exception('this template knows the roles user, assistant and tool') }}{% endif %}"
    "{{ (message['content'] or '') + '<end>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<asst>' }}{% endif %}"
)

folder = Path(__file__).parent / "model"
vocabulary = {token: id for id, token in enumerate(SPECIAL + [chr(code) for code in range(32, 127)])}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
tokenizer.decoder = decoders.Fuse()
tokenizer.save(str(folder / "tokenizer.json"))

config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<bos>",
    "eos_token": "<end>",
    "pad_token": "<pad>",
    "additional_special_tokens": ["<user>", "<asst>", "<tool>"],
    "model_max_length": 64,
    "clean_up_tokenization_spaces": False,
    "chat_template": TEMPLATE,
}
(folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

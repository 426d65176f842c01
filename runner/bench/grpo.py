r"""TRL's GRPO trainer on CPU: prints the time (seconds since the epoch) at which each optimizer step was done.

    PYTHON runner/bench/grpo.py \
        '{"model": FOLDER, "prompts": [...], "groups": 8, "samples": 8, "tokens": 64, "steps": 8, "threads": 2}'
"""

import json
import sys
import tempfile
import time

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class StepTimes(TrainerCallback):
    def __init__(self):
        self.times = []

    def on_step_end(self, args, state, control, **_):
        self.times.append(time.time())


def reward(completions, **_):
    """As agent.ts has it."""
    return [sum(message["content"].count("e") for message in completion) / 64 for completion in completions]


def main():
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    noted = StepTimes()
    rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in options["prompts"]]
    batch = options["groups"] * options["samples"]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            model_init_kwargs={"dtype": "float32"},
            per_device_train_batch_size=batch,
            num_generations=options["samples"],
            max_completion_length=options["tokens"],
            max_steps=options["steps"],
            learning_rate=1e-5,
            max_grad_norm=1.0,
            beta=0.0,
            # What costs time and is not needed here is off: the peer at its fastest.
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=options["steps"] + 1,
        )
        trainer = GRPOTrainer(
            model=options["model"],
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            callbacks=[noted],
        )
        trainer.train()
    print(json.dumps({"steps": noted.times}))


main()

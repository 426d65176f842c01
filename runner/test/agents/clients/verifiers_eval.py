"""Runs the environment `sums` as verifiers does, through its training client. The argument: the tokenizer's folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

here, programs = Path(__file__).parent, Path(sys.executable).parent
# `uv` of this folder goes before any other.
path = os.pathsep.join([str(here), str(programs), os.environ["PATH"]])
environment = {**os.environ, "PATH": path, "PYTHONPATH": str(here), "PYTHONDONTWRITEBYTECODE": "1"}
options = {
    "--client.type": "train",
    "--client.base-url": os.environ["OPENAI_BASE_URL"],
    "--client.api-key-var": "OPENAI_API_KEY",
    "--client.renderer-model-name": sys.argv[1],
    "--client.renderer.name": "qwen3",
    "--env.agent.harness.id": "null",
    "--env.agent.runtime.type": "subprocess",
    "--push": "False",
}
words = [word for option in options.items() for word in option]
subprocess.run(
    [programs / "vf-eval", "sums", "-m", os.environ["OPENAI_MODEL"], *words],
    env=environment,
    stdout=sys.stderr,
    check=True,
)

[traces] = Path("outputs").glob("*/traces.jsonl")
[trace] = json.loads(traces.read_text())["traces"]
print(json.dumps(trace["errors"]), file=sys.stderr)
print(json.dumps({"reward": trace["rewards"]["says_five"]["score"]}))

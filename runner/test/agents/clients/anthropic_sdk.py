"""Anthropic's SDK for Python: a tool turn, whole and streamed."""

import json
import os

from anthropic import Anthropic

client = Anthropic()
number = {"type": "number"}
tool = {"name": "add", "input_schema": {"type": "object", "properties": {"a": number, "b": number}}}


def ask(messages, stream):
    asked = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 200, "messages": messages, "tools": [tool]}
    if not stream:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as events:
        return events.get_final_message()


for stream in [False, True]:
    messages = [{"role": "user", "content": f"{stream}: 2 + 3?"}]
    message = ask(messages, stream)
    assert message.stop_reason == "tool_use"
    [call] = [block for block in message.content if block.type == "tool_use"]
    answer = {"type": "tool_result", "tool_use_id": call.id, "content": str(call.input["a"] + call.input["b"])}
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [answer]}]
    assert ask(messages, stream).content[0].text == "The sum is 5."

print(json.dumps({"reward": 1}))

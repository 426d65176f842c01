"""OpenAI's SDK for Python: a tool turn on both of its wires, whole and streamed."""

import json
import os

from openai import OpenAI

client = OpenAI()
model = os.environ["OPENAI_MODEL"]
number = {"type": "number"}
function = {
    "name": "add",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": number, "b": number},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def result(arguments):
    given = json.loads(arguments)
    return str(given["a"] + given["b"])


def chat(messages, stream):
    asked = {"model": model, "messages": messages, "tools": [{"type": "function", "function": function}]}
    if not stream:
        return client.chat.completions.create(**asked).choices[0].message
    with client.chat.completions.stream(**asked) as events:
        return events.get_final_completion().choices[0].message


def respond(items, stream):
    asked = {"model": model, "input": items, "tools": [{"type": "function", **function}]}
    if not stream:
        return client.responses.create(**asked)
    with client.responses.stream(**asked) as events:
        return events.get_final_response()


for stream in [False, True]:
    messages = [{"role": "user", "content": f"chat {stream}: 2 + 3?"}]
    message = chat(messages, stream)
    [call] = message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result(call.function.arguments)}]
    assert chat(messages, stream).content == "The sum is 5."

    items = [{"role": "user", "content": f"responses {stream}: 2 + 3?"}]
    response = respond(items, stream)
    [call] = [item for item in response.output if item.type == "function_call"]
    items += response.output
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": result(call.arguments)}]
    assert respond(items, stream).output_text == "The sum is 5."

print(json.dumps({"reward": 1}))

"""openai-agents: an agent with a tool on both wires, run to its end and streamed."""

import asyncio
import json
import os

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI()
calls = []


@function_tool
def add(a: float, b: float) -> str:
    """Adds two numbers."""
    calls.append((a, b))
    return str(int(a + b))


async def main():
    for wire in [OpenAIChatCompletionsModel, OpenAIResponsesModel]:
        model = wire(model=os.environ["OPENAI_MODEL"], openai_client=client)
        agent = Agent(name="adder", instructions="Add with the tool.", model=model, tools=[add])
        whole = await Runner.run(agent, f"{wire.__name__}, whole: 2 + 3?")
        streamed = Runner.run_streamed(agent, f"{wire.__name__}, streamed: 2 + 3?")
        async for _ in streamed.stream_events():
            pass
        assert whole.final_output == streamed.final_output == "The sum is 5."
    assert calls == [(2, 3)] * 4


asyncio.run(main())
print(json.dumps({"reward": 1}))

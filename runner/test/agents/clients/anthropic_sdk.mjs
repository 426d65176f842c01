// Anthropic's SDK for Node: a tool turn, whole and streamed. The argument: where it is installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { Anthropic } = createRequire(process.argv[2])("@anthropic-ai/sdk");
const client = new Anthropic();
const number = { type: "number" };
const tools = [{ name: "add", input_schema: { type: "object", properties: { a: number, b: number } } }];

async function ask(messages, isStreamed) {
  const asked = { model: process.env.ANTHROPIC_MODEL, max_tokens: 200, messages, tools };
  return isStreamed ? client.messages.stream(asked).finalMessage() : client.messages.create(asked);
}

for (const isStreamed of [false, true]) {
  const messages = [{ role: "user", content: `${isStreamed}: 2 + 3?` }];
  const { content, stop_reason } = await ask(messages, isStreamed);
  assert.equal(stop_reason, "tool_use");
  const { id, input } = content.find(({ type }) => type === "tool_use");
  const answer = { type: "tool_result", tool_use_id: id, content: String(input.a + input.b) };
  messages.push({ role: "assistant", content }, { role: "user", content: [answer] });
  assert.equal((await ask(messages, isStreamed)).content[0].text, "The sum is 5.");
}
console.log(JSON.stringify({ reward: 1 }));

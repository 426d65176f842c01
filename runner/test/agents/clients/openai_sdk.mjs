// OpenAI's SDK for Node: a tool turn on both of its wires, whole and streamed. The argument: where it is installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { OpenAI } = createRequire(process.argv[2])("openai");
const client = new OpenAI();
const model = process.env.OPENAI_MODEL;
const number = { type: "number" };
const add = { name: "add", parameters: { type: "object", properties: { a: number, b: number } } };

function result(text) {
  const { a, b } = JSON.parse(text);
  return String(a + b);
}

async function chat(messages, isStreamed) {
  const asked = { model, messages, tools: [{ type: "function", function: add }] };
  const { completions } = client.chat;
  const whole = isStreamed ? await completions.stream(asked).finalChatCompletion() : await completions.create(asked);
  return whole.choices[0].message;
}

async function respond(input, isStreamed) {
  const asked = { model, input, tools: [{ type: "function", ...add }] };
  return isStreamed ? client.responses.stream(asked).finalResponse() : client.responses.create(asked);
}

for (const isStreamed of [false, true]) {
  const messages = [{ role: "user", content: `chat ${isStreamed}: 2 + 3?` }];
  const message = await chat(messages, isStreamed);
  const [called] = message.tool_calls;
  messages.push(message, { role: "tool", tool_call_id: called.id, content: result(called.function.arguments) });
  assert.equal((await chat(messages, isStreamed)).content, "The sum is 5.");

  const input = [{ role: "user", content: `responses ${isStreamed}: 2 + 3?` }];
  const { output } = await respond(input, isStreamed);
  const call = output.find(({ type }) => type === "function_call");
  input.push(...output, { type: "function_call_output", call_id: call.call_id, output: result(call.arguments) });
  assert.equal((await respond(input, isStreamed)).output_text, "The sum is 5.");
}
console.log(JSON.stringify({ reward: 1 }));

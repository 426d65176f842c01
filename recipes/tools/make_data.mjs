// Writes warmup.jsonl: the demonstrations of recipes/pointers/ with tool calls in place of the text `get b`.
// Run: node recipes/tools/make_data.mjs
import { readFileSync, writeFileSync } from "node:fs";

const lines = readFileSync(new URL("../pointers/warmup.jsonl", import.meta.url), "utf8")
  .trim()
  .split("\n");

function asCalls(messages) {
  let id = "";
  return messages.map((message, at) => {
    if (message.role === "tool") return { ...message, tool_call_id: id };
    if (message.role !== "assistant") return message;
    id = `call${String(at).padStart(5, "0")}`;
    const called = { name: "get", arguments: JSON.stringify({ key: message.content.slice("get ".length) }) };
    return { role: "assistant", content: null, tool_calls: [{ id, type: "function", function: called }] };
  });
}

const rows = lines.map((line) => {
  const { prompt, reply } = JSON.parse(line);
  return `${JSON.stringify({ prompt: asCalls(prompt), reply })}\n`;
});
writeFileSync(new URL("warmup.jsonl", import.meta.url), rows.join(""));

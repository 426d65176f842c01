import assert from "node:assert/strict";
import { test } from "node:test";
import { loadAgent } from "molt-runner/testing";

const Agent = await loadAgent(new URL("agent.ts", import.meta.url));
const row = {
  id: "0",
  messages: [{ role: "user", content: "sort 4917" }],
  label: "1479",
  fields: { prompt: "sort 4917", label: "1479" },
};

/** What the agent gives for one answer of the model. */
async function answer(text) {
  const agent = new Agent();
  await agent.reset(row);
  return agent.step({ text, stop: "stop", turn: 0 }, row);
}

test("only the digits in order are rewarded, and one answer ends the episode", async () => {
  assert.deepEqual(await answer("1479"), { reward: 1, done: true });
  assert.deepEqual(await answer("1497"), { reward: 0, done: true });
  assert.deepEqual(await answer(""), { reward: 0, done: true });
});

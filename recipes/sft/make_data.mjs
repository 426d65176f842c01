// Writes train.jsonl and heldout.jsonl: a shop's assistant asks a tool for a price, tells it and reckons with it.
//   node recipes/sft/make_data.mjs
import { writeFileSync } from "node:fs";

/** mulberry32. */
function makeRandom(seed) {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

const random = makeRandom(1);
const pick = (items) => items[random(items.length)];
const goods = ["figs", "nuts", "tea", "rice", "salt", "corn", "oats", "eggs", "kale", "lime"];
const schema = { type: "object", properties: { of: { type: "string" } } };
const tools = [{ type: "function", function: { name: "price", description: "what one costs", parameters: schema } }];

function conversation() {
  const [item, price, count] = [pick(goods), 2 + random(8), 2 + random(3)];
  const call = { id: "call00001", type: "function", function: { name: "price", arguments: `{"of":"${item}"}` } };
  const messages = [
    { role: "user", content: pick([`price of ${item}?`, `what do ${item} cost?`]) },
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", content: String(price), tool_call_id: call.id },
    { role: "assistant", content: `${price} each` },
    { role: "user", content: pick([`${count} of them?`, `and ${count}?`]) },
  ];
  return { messages, tools, reply: `${count} x ${price} = ${count * price}` };
}

// Each conversation once, so that none that is held out is trained on.
const rows = new Set();
while (rows.size < 448) rows.add(JSON.stringify(conversation()));
const lines = [...rows].map((row) => `${row}\n`);
writeFileSync(new URL("train.jsonl", import.meta.url), lines.slice(0, 400).join(""));
writeFileSync(new URL("heldout.jsonl", import.meta.url), lines.slice(400).join(""));

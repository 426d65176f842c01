// Writes warmup.jsonl, prompts.jsonl and heldout.jsonl: find the digit that a key leads to, over one pointer or none.
// Seeded; run it again and the files are the same. Run: node recipes/pointers/make_data.mjs
import { writeFileSync } from "node:fs";

const seed = 20261129;
const counts = { warmup: 1000, prompts: 1600, heldout: 192 };
const keys = [..."abcd"];
const digits = [..."0123456789"];
/** Of the episodes: model calls at most. */
const maxTurns = 5;

/** mulberry32, a 32-bit generator: uniform in [0, 1). */
function makeRandom(state) {
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const random = makeRandom(seed);
const choose = (items) => items[Math.floor(random() * items.length)];
const without = (items, ...taken) => items.filter((item) => !taken.includes(item));

/** The asked key holds the answer, or points to the key that does; most of the others hold a wrong digit. */
function makeRow() {
  const asked = choose(keys);
  const label = choose(digits);
  const entries = Object.fromEntries(
    keys.map((key) => [key, random() < 0.75 ? choose(without(digits, label)) : choose(without(keys, key))]),
  );
  const holder = random() < 0.5 ? asked : choose(without(keys, asked));
  if (holder !== asked) entries[asked] = holder;
  entries[holder] = label;
  return { prompt: `find ${asked}`, table: entries, label };
}

/** Rows that were not taken before: what is held out is in neither warm-up nor training. */
const taken = new Set();
function takeRow() {
  for (;;) {
    const row = makeRow();
    const { prompt, table } = row;
    const name = JSON.stringify({ prompt, table });
    if (taken.has(name)) continue;
    taken.add(name);
    return row;
  }
}

/** Looks random keys up until a digit shows, and answers it: right in form, and seldom right. */
function wander({ prompt, table }) {
  const messages = [{ role: "user", content: prompt }];
  for (let turn = 1; turn < maxTurns; turn++) {
    const key = choose(keys);
    messages.push({ role: "assistant", content: `get ${key}` }, { role: "tool", content: table[key] });
    if (digits.includes(table[key])) return { prompt: messages, reply: `=${table[key]}` };
  }
  return wander({ prompt, table });
}

function write(name, rows) {
  writeFileSync(new URL(`${name}.jsonl`, import.meta.url), rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
}

const take = (count) => Array.from({ length: count }, takeRow);
write("heldout", take(counts.heldout));
write("prompts", take(counts.prompts));
// A warm-up on right answers would take away the entropy that learning needs.
write("warmup", take(counts.warmup).map(wander));

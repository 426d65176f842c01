// Writes warmup.jsonl, prompts.jsonl and heldout.jsonl: `max 4917` is answered by the largest digit. Seeded; run it
// again and the files are the same. Run: node recipes/command/make_data.mjs
import { writeFileSync } from "node:fs";

const counts = { heldout: 64, prompts: 600, warmup: 600 };

/** mulberry32, a 32-bit generator: uniform in [0, 1). */
function makeRandom(state) {
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const random = makeRandom(20261129);
const choose = (items) => items[Math.floor(random() * items.length)];

/** Numbers of 3 to 5 different digits that were not taken before. */
const taken = new Set();
function takeNumber() {
  for (;;) {
    const digits = [..."0123456789"];
    const length = choose([3, 4, 5]);
    const number = Array.from({ length }, () => digits.splice(Math.floor(random() * digits.length), 1)[0]).join("");
    if (!taken.has(number)) {
      taken.add(number);
      return number;
    }
  }
}

const asked = (number) => ({ prompt: `max ${number}`, label: [...number].sort().at(-1) });
// A warm-up on right answers would take away the entropy that learning needs: any digit of the prompt is shown.
const shown = (number) => ({ prompt: `max ${number}`, reply: choose([...number]) });

for (const [name, count] of Object.entries(counts)) {
  const rows = Array.from({ length: count }, takeNumber).map(name === "warmup" ? shown : asked);
  writeFileSync(new URL(`${name}.jsonl`, import.meta.url), rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
}

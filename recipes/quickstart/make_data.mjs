// Writes warmup.jsonl, prompts.jsonl and heldout.jsonl: `sort 4917` with 3 to 5 distinct digits, each length as often.
// Seeded; run it again and the files are the same. Run: node recipes/quickstart/make_data.mjs
import { writeFileSync } from "node:fs";

const seed = 20261129;
const lengths = [3, 4, 5];
const counts = { warmup: 1000, prompts: 4800, heldout: 192 };

/** CRC-32 as zlib computes it (reflected polynomial 0xedb88320). */
function crc32(text) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}

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

function shuffled(items) {
  const out = [...items];
  for (let i = out.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [out[i], out[j]] = [out[j], out[i]];
  }
  return out;
}

/** Every sequence of `length` distinct digits. */
function sequences(length) {
  if (length === 0) return [""];
  return sequences(length - 1).flatMap((head) =>
    [..."0123456789"].filter((digit) => !head.includes(digit)).map((digit) => head + digit),
  );
}

const isHeldOut = (digits) => crc32(`sort ${digits}`) % 10 === 0;
const label = (digits) => [...digits].sort().join("");

/** Endless, without a repeat until all of one length have been taken (there are only 648 or so of length 3). */
function* drawn(pool) {
  for (;;) yield* shuffled(pool);
}

function take(count, accept) {
  const pools = lengths.map((length) => drawn(sequences(length).filter(accept)));
  return shuffled(Array.from({ length: count }, (_, i) => pools[i % pools.length].next().value));
}

function write(name, rows) {
  writeFileSync(new URL(`${name}.jsonl`, import.meta.url), rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
}

const training = (digits) => !isHeldOut(digits);
// Right in format, random in content: a warm-up on right answers would take away the entropy that learning needs.
write(
  "warmup",
  take(counts.warmup, training).map((digits) => ({ prompt: `sort ${digits}`, reply: shuffled(digits).join("") })),
);
write(
  "prompts",
  take(counts.prompts, training).map((digits) => ({ prompt: `sort ${digits}`, label: label(digits) })),
);
write(
  "heldout",
  take(counts.heldout, isHeldOut).map((digits) => ({ prompt: `sort ${digits}`, label: label(digits) })),
);

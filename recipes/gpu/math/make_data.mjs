// Writes this folder's data: problems of six kinds with their answers, and worked ones to imitate. They stand in for a
// real set, so that the recipes beside this folder check and start as they are.
//   node recipes/gpu/math/make_data.mjs
import { writeFileSync } from "node:fs";

/** A small seeded generator (mulberry32). */
function generator(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const divisor = (a, b) => (b === 0 ? a : divisor(b, a % b));
const fraction = (over, under) => {
  const by = divisor(over, under);
  return under === by ? String(over / by) : `\\frac{${over / by}}{${under / by}}`;
};

/** Each gives a problem, its steps and its answer, from a source of integers `whole(low, high)`. */
const kinds = [
  (whole) => {
    const [a, x, b] = [whole(2, 19), whole(2, 60), whole(3, 99)];
    const steps = `Subtract ${b}: ${a}x = ${a * x}. Divide by ${a}: x = ${x}.`;
    return { problem: `Solve ${a}x + ${b} = ${a * x + b} for x.`, steps, answer: String(x) };
  },
  (whole) => {
    const [a, b, c, d] = [whole(1, 9), whole(3, 12), whole(1, 9), whole(3, 12)];
    const [over, under] = [a * d + c * b, b * d];
    const steps = `Over ${under} the sum is ${a * d} + ${c * b} = ${over} parts.`;
    const problem = `Compute \\frac{${a}}{${b}} + \\frac{${c}}{${d}} in lowest terms.`;
    return { problem, steps, answer: fraction(over, under) };
  },
  (whole) => {
    const [base, power, modulus] = [whole(3, 30), whole(5, 40), whole(7, 60)];
    let rest = 1;
    for (let k = 0; k < power; k++) rest = (rest * base) % modulus;
    const steps = `Multiply by ${base} and reduce by ${modulus}, ${power} times; ${rest} is left.`;
    return {
      problem: `What is the remainder of ${base}^{${power}} divided by ${modulus}?`,
      steps,
      answer: String(rest),
    };
  },
  (whole) => {
    const [p, q] = [whole(1, 15), whole(1, 15)];
    const steps = `The numbers with sum ${p + q} and product ${p * q} are ${p} and ${q}.`;
    const problem = `What is the larger root of x^2 - ${p + q}x + ${p * q} = 0?`;
    return { problem, steps, answer: String(Math.max(p, q)) };
  },
  (whole) => {
    const [red, blue] = [whole(3, 12), whole(3, 12)];
    const all = red + blue;
    const [over, under] = [red * (red - 1), all * (all - 1)];
    const steps = `The first is red in ${red} of ${all} cases, the second then in ${red - 1} of ${all - 1}.`;
    const problem = `Of ${red} red and ${blue} blue balls two are drawn without replacement. How likely are both red?`;
    return { problem, steps, answer: fraction(over, under) };
  },
  (whole) => {
    const [k, m, n] = [whole(1, 4), whole(2, 9), whole(1, 8)];
    const [long, short] = [m + n, n];
    const [a, b, c] = [long ** 2 - short ** 2, 2 * long * short, long ** 2 + short ** 2].map((side) => side * k);
    const steps = `${a}^2 + ${b}^2 = ${a * a + b * b} = ${c}^2.`;
    return {
      problem: `The legs of a right triangle are ${a} and ${b}. How long is its hypotenuse?`,
      steps,
      answer: `${c}`,
    };
  },
];

function problems(count, seed) {
  const next = generator(seed);
  const whole = (low, high) => low + Math.floor(next() * (high - low + 1));
  return Array.from({ length: count }, (_, index) => kinds[index % kinds.length](whole));
}

const ask = (problem) => [{ role: "user", content: `${problem} Put the answer in \\boxed{}.` }];
const write = (name, rows) =>
  writeFileSync(new URL(name, import.meta.url), rows.map((row) => `${JSON.stringify(row)}\n`).join(""));

const known = new Set();
const fresh = (rows) => rows.filter(({ problem }) => !known.has(problem) && known.add(problem));
const heldOut = fresh(problems(96, 2));
const training = fresh(problems(480, 1));
const rows = (made) => made.map(({ problem, answer }) => ({ prompt: ask(problem), answer }));
write("train.jsonl", rows(training));
write("heldout.jsonl", rows(heldOut));
const worked = training.map(({ problem, steps, answer }) => {
  return { prompt: ask(problem), reply: `${steps} The answer is \\boxed{${answer}}.` };
});
write("worked.jsonl", worked);

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { answerIn, mathAnswer } from "./math.ts";

const grade = mathAnswer();

/** Answers beside labels; whether they are equal is stated by hand. */
const pairs: [answer: string, label: string, equal: boolean][] = [
  // Numbers.
  ["42", "42", true],
  ["42.0", "42", true],
  ["042", "42", true],
  ["+7", "7", true],
  ["-3", "3", false],
  ["−3", "-3", true],
  ["1,000", "1000", true],
  ["1{,}234{,}567", "1234567", true],
  ["12\\,500", "12500", true],
  ["1000", "100", false],
  ["1.5\\times 10^3", "1500", true],
  ["1.5\\cdot10^{-2}", "0.015", true],
  ["100000000000000000001", "100000000000000000000", false],
  ["10^{20}+1", "10^{20}", false],
  ["2^{10}", "1024", true],
  ["5!", "120", true],
  // Fractions and decimals.
  ["\\frac{1}{2}", "0.5", true],
  ["\\frac12", "1/2", true],
  ["\\dfrac{2}{4}", "\\tfrac{1}{2}", true],
  ["-\\frac{3}{4}", "\\frac{-3}{4}", true],
  ["\\frac{-3}{4}", "-0.75", true],
  ["3\\frac{1}{2}", "3.5", true],
  ["0.333", "\\frac{1}{3}", false],
  ["0.3333333333", "1/3", false],
  [".5", "0.5", true],
  ["\\frac{1}{2}", "\\frac{1}{3}", false],
  ["1/0", "2/0", false],
  // Per cent, money, units, degrees.
  ["50\\%", "50", true],
  ["50\\%", "0.5", true],
  ["12.5\\%", "\\frac18", true],
  ["50\\%", "5", false],
  ["\\$18.90", "18.90", true],
  ["\\$5", "6", false],
  ["5\\text{ cm}", "5", true],
  ["5 cm", "5", true],
  ["12 square meters", "12\\text{ m}^2", true],
  ["5\\text{ cm}", "6\\text{ cm}", false],
  ["90^\\circ", "90", true],
  ["90^{\\circ}", "90 degrees", true],
  ["45^\\circ", "90", false],
  ["\\cos 60^\\circ", "0.5", true],
  ["30^\\circ, 60^\\circ", "60, 30", true],
  ["1.000001\\times 10^{-6}", "10^{-6}", false],
  // Roots and constants.
  ["\\sqrt{8}", "2\\sqrt{2}", true],
  ["\\sqrt2", "\\sqrt{2}", true],
  ["\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt3}", true],
  ["\\frac1{\\sqrt3}", "\\frac{\\sqrt3}{3}", true],
  ["\\sqrt{2}", "1.414", false],
  ["\\sqrt[3]{8}", "2", true],
  ["2\\pi", "\\pi\\cdot 2", true],
  ["2\\pi", "6.28", false],
  ["\\frac{\\pi}{2}", "\\frac12\\pi", true],
  ["e^{i\\pi}", "-1", true],
  ["\\log_2 8", "3", true],
  ["1-2i", "-2i+1", true],
  // Expressions and equations.
  ["x^2+2x+1", "(x+1)^2", true],
  ["xy", "yx", true],
  ["2x", "x", false],
  ["\\frac{x+1}{2}", "\\frac{1+x}{2}", true],
  ["\\sin^2 x+\\cos^2 x", "1", true],
  ["x = 3", "3", true],
  ["x=3", "x = 3.0", true],
  ["x=3", "y=4", false],
  ["y=2x+1", "1+2x", true],
  ["x_1=4", "4", true],
  // Tuples, intervals, sets, lists.
  ["(1,2)", "(1, 2)", true],
  ["(2,1)", "(1,2)", false],
  ["(1,2)", "[1,2]", false],
  ["\\left(\\frac12, 3\\right)", "(0.5,3)", true],
  ["(x,y)=(1,2)", "(1,2)", true],
  ["[0,1)", "[0, 1)", true],
  ["[0,1)", "(0,1)", false],
  ["(-\\infty, 3]", "(-\\infty,3.0]", true],
  ["(-\\infty,1)\\cup(2,\\infty)", "(2,\\infty)\\cup(-\\infty,1)", true],
  ["[0,1)", "[0,2)", false],
  ["\\{1,2,3\\}", "\\{3,2,1\\}", true],
  ["\\{1,2\\}", "\\{1,2,3\\}", false],
  ["\\{1,1\\}", "\\{1,2\\}", false],
  ["1, 2", "2,1", true],
  ["1 and 2", "2, 1", true],
  ["x=1, x=2", "1,2", true],
  ["\\pm 2", "2,-2", true],
  ["1\\pm\\sqrt{2}", "1-\\sqrt2, 1+\\sqrt2", true],
  ["\\pm 2", "2", false],
  ["(5)", "5", true],
  ["x \\in [1,2]", "[1,2]", true],
  ["\\{(1,2),(3,4)\\}", "\\{(3,4),(1,2)\\}", true],
  ["\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", true],
  // Words and letters.
  ["\\text{east}", "East", true],
  ["\\text{seat}", "\\text{east}", false],
  ["\\text{(C)}", "C", true],
  ["\\textbf{B}", "C", false],
  ["\\text{yes}", "yes", true],
  ["\\text{no}", "yes", false],
  ["\\emptyset", "\\emptyset", true],
  ["", "5", false],
  ["x", "5", false],
  ["\\frac{", "5", false],
];

test.each(pairs)("%s beside %s: %s", async (answer, label, equal) => {
  expect(await grade(`So it is \\boxed{${answer}}.`, label)).toBe(equal ? 1 : 0);
});

test("the table has right ones and wrong ones enough", () => {
  expect(pairs.length).toBeGreaterThanOrEqual(60);
  expect(pairs.filter(([, , equal]) => !equal).length).toBeGreaterThanOrEqual(20);
});

describe("where an answer is", () => {
  test.each([
    ["\\boxed{1} no, \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"],
    ["\\fbox{a} \\boxed{b", "a"],
    ["\\boxed{\\{1,2\\}}", "\\{1,2\\}"],
    ["the answer is 3. Then 4", "3"],
    ["The answer is: **7**", "7"],
    ["Final answer: $\\frac{3}{4}$ of it", "\\frac{3}{4}"],
    ["answer is 3.5", "3.5"],
    ["first 3, then 1,250.", "1,250"],
    ["it is -4", "-4"],
    ["between 3/4", "3/4"],
    ["nothing", null],
  ])("%s", (text, answer) => {
    expect(answerIn(text)).toBe(answer);
  });

  test("after the thoughts", async () => {
    expect(await grade("<think>\\boxed{5}</think>It is 6.", "5")).toBe(0);
    expect(await grade("<think>\\boxed{5}</think>It is 6.", "6")).toBe(1);
  });
});

test("an integer, a fraction or a tuple equals itself, and not its successor", async () => {
  const integer = fc.bigInt({ min: -(10n ** 30n), max: 10n ** 30n });
  await fc.assert(
    fc.asyncProperty(integer, integer, async (one, other) => {
      const box = (text: string) => `\\boxed{${text}}`;
      expect(await grade(box(`${one}`), `${one}`)).toBe(1);
      expect(await grade(box(`${one + 1n}`), `${one}`)).toBe(0);
      expect(await grade(box(`(${one},${other})`), `(${one}, ${other})`)).toBe(1);
      expect(await grade(box(`\\frac{${2n * one}}{14}`), `\\frac{${one}}{7}`)).toBe(1);
    }),
    { numRuns: 30 },
  );
});

test("any reply gets a verdict or a reason", async () => {
  await fc.assert(
    fc.asyncProperty(fc.string(), async (text) => {
      expect([0, 1]).toContain(await grade(`\\boxed{${text}}`, "5"));
    }),
    { numRuns: 200 },
  );
});

// Case D7.
test("algebra without an end is a failure with a reason, and the next answer is graded", async () => {
  const impatient = mathAnswer({ timeout: 0.5 });
  const hostile = Array.from({ length: 2 }, () => impatient("\\boxed{99999999999!}", "1"));
  for (const outcome of hostile) {
    await expect(outcome).rejects.toMatchObject({
      reason: "grader_timeout",
      message: "waited 0.5 s for the algebra of 99999999999! = 1",
    });
  }
  expect(await grade("\\boxed{\\sqrt{8}}", "2\\sqrt2")).toBe(1);
});

// Case D7.
test("a row without a label is a failure, not a wrong answer", async () => {
  await expect(grade("\\boxed{5}", undefined)).rejects.toMatchObject({
    reason: "reward",
    message: "the row's label (data.label_key) is missing",
  });
});

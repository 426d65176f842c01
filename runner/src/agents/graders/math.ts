import { equalByAlgebra } from "./algebra.ts";
import { labelText, spoken } from "./text.ts";

/** Characters: what is longer is no answer. */
const longestAnswer = 300;

/**
 * 1 where the reply's answer equals the label as mathematics, else 0. The answer is the last balanced `\boxed{…}`,
 * else what "answer is" says, else the last number. Rejects where the algebra takes longer than `timeout`, in seconds,
 * or its thread dies: the rollout then counts for nothing.
 */
export function mathAnswer({ timeout = 5 }: { timeout?: number } = {}) {
  return async (text: string, label: unknown): Promise<number> => {
    const wanted = labelText(label);
    const answer = answerIn(spoken(text));
    if (answer === null || answer.length > longestAnswer) return 0;
    const [one, other] = [answer, lastBoxed(wanted) ?? wanted].map(normalize) as [string, string];
    const isSameWith = (percent: string) =>
      isSame(one.replaceAll("%", percent), other.replaceAll("%", percent), timeout);
    // A percentage is read as its number, and as hundredths.
    return Number((await isSameWith("")) || (/%/.test(one + other) && (await isSameWith("\\times 0.01"))));
  };
}

/** The last balanced `\boxed{…}`, else what the last "answer is" says, else the last number; null without any. */
export function answerIn(text: string): string | null {
  const boxed = lastBoxed(text);
  if (boxed !== undefined) return boxed;
  const said = [...text.matchAll(/\banswer(?:\s+is|\s*:)[\s:*]*(.+)/gi)].at(-1)?.[1];
  if (said) return /^\$+([^$]+)\$/.exec(said)?.[1] ?? said.replace(/\*|[.;!](?=\s|\**$).*$/g, "");
  const numbers = text.match(/-?\d+(?:,\d+)*(?:\.\d+)?(?:\/\d+)?%?/g);
  return numbers?.at(-1) ?? null;
}

/** Four braces deep. */
function lastBoxed(text: string): string | undefined {
  const inner = [1, 2, 3].reduce((nested) => `(?:[^{}]|\\{${nested}*\\})`, "[^{}]");
  return [...text.matchAll(new RegExp(`\\\\(?:boxed|fbox)\\s*\\{(${inner}*)\\}`, "g"))].at(-1)?.[1];
}

/** In order. They leave no sizes, units, currencies, names before a value, nor separators of thousands. */
const rules: [RegExp, string][] = [
  [/\\(?:left|right|displaystyle|[bB]ig[lr]?)(?![a-z])/g, ""],
  [/\{,\}/g, ","],
  [/(?<!\\)\\[,!;: ]|\\q?quad|~|\\?\$|[£€]/g, " "],
  [/[−–]/g, "-"],
  [/(?<=^|,)([^a-z,]*)(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|°|degrees?)\s*(?=,|$)/g, "$1"],
  // After a number it is a unit; elsewhere it is the answer.
  [/([\d})])\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?\d\}?)?/g, "$1"],
  [/\\(?:text|mathrm|mbox|textbf|mathbf)\s*\{([^{}]*)\}/g, "$1"],
  [/^(-?[\d.,/]+)\s+(?!sqrt|and|or)[a-z]{2}[a-z\s/^\d]*$/i, "$1"],
  [/\\%/g, "%"],
  [/\\[dt]frac/g, "\\frac"],
  [/\\frac\s*(\w)\{/g, "\\frac{$1}{"],
  [/(?<=^|,|\band|\bor)\s*(?:[a-z](?:_\{?\w+\}?)?|\([a-z](?:,\s*[a-z])+\))\s*(?:=|\\in(?![a-z]))/gi, ""],
  [/\s+(?:and|or)\s+|\\cup(?![a-z])/g, ","],
  [/^\s+|[\s.]+$/g, ""],
];

function normalize(answer: string): string {
  const text = rules.reduce((before, [pattern, by]) => before.replace(pattern, by), answer);
  return text.replace(/(?<![\d,.([])\d{1,3}(?:,\d{3})+(?![\d,])/g, (number) => number.replaceAll(",", ""));
}

async function isSame(one: string, other: string, timeout: number): Promise<boolean> {
  const [left, right] = [partsOf(one), partsOf(other)];
  if (left.brackets !== right.brackets || left.parts.length !== right.parts.length) return false;
  const isOrdered = left.brackets !== "";
  if (!isOrdered && left.parts.length === 1) return isSameValue(left.parts[0]!, right.parts[0]!, timeout);
  const open = right.parts;
  for (const part of left.parts) {
    const candidates = isOrdered ? 1 : open.length;
    let at = 0;
    while (at < candidates && !(await isSame(part, open[at]!, timeout))) at++;
    if (at === candidates) return false;
    open.splice(at, 1);
  }
  return true;
}

/** What is listed, and in which brackets; braces, and none, mean no order. */
function partsOf(text: string): { brackets: string; parts: string[] } {
  const brackets = /^(\\\{|[([])((?:[^()[\]]|\([^()]*\))*)(\\\}|[)\]])$/s.exec(text);
  const [, open = "", inner = text, close = ""] = brackets ?? [];
  const split = inner.split(/,(?![^([{]*[)\]}])/).map((part) => part.trim());
  // Round ones around one value mean nothing.
  if (open !== "" && open !== "\\{" && split.length > 1) return { brackets: open + close, parts: split };
  const signs = (part: string) => ["+", "-"].map((sign) => part.replace(/\\pm(?![a-z])/, sign));
  return { brackets: "", parts: split.flatMap((part) => (part.includes("\\pm") ? signs(part) : [part])) };
}

function isSameValue(one: string, other: string, timeout: number): boolean | Promise<boolean> {
  const [left, right] = [one, other].map((text) => text.replace(/\s|^\+/g, "")) as [string, string];
  if (left === right) return true;
  // A word is no product of its letters.
  const isWord = [one, other].some((text) => /^[a-z\s]{3,}$/i.test(text));
  return isWord ? left.toLowerCase() === right.toLowerCase() : equalByAlgebra(one, other, timeout);
}

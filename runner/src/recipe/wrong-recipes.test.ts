import { afterEach, expect, test, vi } from "vitest";
import { diagnose } from "./index.ts";

const right = `actor: { model_name_or_path: model }
data: { prompt_dataset: a.jsonl }
train: { agent_path: agent.ts }
`;
const parents: Record<string, string> = {
  "/r/parent.yaml": right,
  "/r/faulty.yaml": "rnu: {}\n",
  "/r/circle.yaml": "extends: wrong.yaml\n",
};

/** `line:column code` of all that is found, and of a guardrail its name. */
function found(text: string): string[] {
  const readFile = (path: string) => parents[path];
  return diagnose(text, "/r/wrong.yaml", { readFile, environment: {} }).map(({ range, code, rule, message }) => {
    expect(message).toMatch(/^\S/);
    expect(range.end.line * 1e6 + range.end.character).toBeGreaterThanOrEqual(
      range.start.line * 1e6 + range.start.character,
    );
    return `${range.start.line + 1}:${range.start.character + 1} ${rule ?? code}`;
  });
}

/** What every file without a single right key lacks. */
const nothing = ["1:1 missing-key", "1:1 required", "1:1 required"];
const sized = (head: string, fill: string, size: number) => head + fill.repeat(Math.ceil(size / fill.length));

/** Deliberately wrong recipes; `right` is what the text stands below, so that its own lines start at 4. */
const wrong: [name: string, text: string, expected: string[]][] = [
  // Misspellings.
  ["a section", `${right}trian: {}\n`, ["4:1 unknown-key"]],
  ["a key", `${right}rollout:\n  temprature: 1\n`, ["5:3 unknown-key"]],
  ["a nested section", `${right}algo:\n  advantge:\n    estimator: grpo\n`, ["5:3 unknown-key"]],
  ["a nested key", `${right}algo:\n  kl: { coef: 0.1 }\n`, ["5:9 unknown-key"]],
  ["a key in capitals", `${right}Run: { seed: 1 }\n`, ["4:1 unknown-key"]],
  ["a key with hyphens", `${right}rollout: { batch-size: 1 }\n`, ["4:12 unknown-key"]],
  ["a key of another section", `${right}rollout: { lr: 1 }\n`, ["4:12 unknown-key"]],
  [
    "a key of the Python original",
    `${right}train: { }\nrollout: { vllm_generate_batch_size: 9 }\n`,
    ["4:1 duplicate-key", "5:12 unknown-key"],
  ],
  ["a dotted key", `${right}actor.adam.lr: 1e-3\n`, ["4:1 unknown-key"]],
  ["a quoted key with a blank", `${right}"run ": { seed: 1 }\n`, ["4:1 unknown-key"]],
  ["a number as a key", `${right}1: 2\n`, ["4:1 unknown-key"]],
  ["no key", `${right}~: 2\n`, ["4:1 unknown-key"]],
  ["a list as a key", `${right}? [run, seed]\n: 1\n`, ["4:3 unknown-key"]],
  ["every key", "a: 1\nb: 2\n", ["1:1 unknown-key", ...nothing, "2:1 unknown-key"]],
  // Values.
  ["text for a number", `${right}rollout: { batch_size: many }\n`, ["4:24 wrong-value"]],
  ["a fraction of a prompt", `${right}rollout: { batch_size: 1.5 }\n`, ["4:24 wrong-value"]],
  ["quoted digits", `${right}rollout: { batch_size: "8" }\n`, ["4:24 wrong-value"]],
  ["a value out of range", `${right}run: { steps: 0 }\n`, ["4:15 wrong-value"]],
  ["a misspelt choice", `${right}algo: { advantage: { estimator: gpro } }\n`, ["4:33 wrong-value"]],
  [
    "an adapter on a module that no model has",
    right.replace("model }", "model, lora: { rank: 8, target_modules: [q_proj, qkv_proj] } }"),
    ["1:70 wrong-value"],
  ],
  ["YAML 1.1's yes", `${right}eval: { at_start: yes }\n`, ["4:19 wrong-value"]],
  ["a list too short", `${right}reward: { clip_range: [1] }\n`, ["4:23 wrong-value"]],
  ["a map for a value", `${right}run: { seed: { a: 1 } }\n`, ["4:14 wrong-value"]],
  ["no value", `${right}run: { seed: }\n`, ["4:14 wrong-value"]],
  ["infinity", `${right}rollout: { timeout: .inf }\n`, ["4:21 wrong-value"]],
  ["a value for a section", `${right}run: 3\n`, ["4:6 not-a-section"]],
  ["a list for a section", `${right}run:\n  - seed: 1\n`, ["5:3 not-a-section"]],
  ["a variable that is not set", `${right}run: { name: "\${env:NO}" }\n`, ["4:14 environment"]],
  [
    "two slips and a guardrail",
    `${right}run: { sed: 1, steps: x }\nrollout: { top_p: 0.9 }\n`,
    ["4:8 unknown-key", "4:23 wrong-value", "5:19 topP"],
  ],
  // Duplicates, anchors, aliases, merges, tags.
  ["a duplicate key", `${right}run: { seed: 1, seed: 2 }\n`, ["4:17 duplicate-key"]],
  ["a duplicate section", `${right}data: {}\n`, ["4:1 duplicate-key"]],
  ["an alias without its anchor", `${right}run: { seed: *s }\n`, ["4:14 wrong-value"]],
  ["an alias of itself", `${right}reward: { clip_range: &b [*b, 1] }\n`, ["4:26 wrong-value"]],
  ["a section that holds itself", `${right}algo: &a\n  kl: *a\n`, ["5:3 unknown-key"]],
  ["an anchor of its own section", `${right}x: &x { seed: 1 }\nrun: *x\n`, ["4:1 unknown-key"]],
  ["an alias of another section", `${right}rollout: &r { top_p: 0.5 }\nrun: *r\n`, ["4:15 unknown-key", "4:22 topP"]],
  ["a merge key", `${right}run:\n  <<: { seed: 1 }\n`, ["5:3 unknown-key"]],
  ["a tag that would build an object", `${right}run: !!python/object:os.system [x]\n`, ["4:6 syntax"]],
  [
    "aliases of aliases of aliases",
    `${right}vllm: { extra_args: &a [x, x, x, x, x, x, x, x] }\n` +
      "b: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\n" +
      "d: &d [*c, *c, *c, *c, *c, *c, *c, *c]\nreward: { clip_range: [*d, *d] }\n",
    ["5:1 unknown-key", "6:1 unknown-key", "7:1 unknown-key", "8:23 wrong-value"],
  ],
  // YAML that does not parse.
  ["a tab", "actor:\n\tmodel_name_or_path: m\n", ["2:1 syntax"]],
  ["an open quote", "actor: 'x\n", ["2:1 syntax"]],
  ["an open brace", `${right}run: { seed: 1\n`, ["5:1 syntax"]],
  ["an open bracket", `${right}reward: { clip_range: [1, 2 }\n`, ["4:29 syntax"]],
  ["an indent too deep", `${right}run:\n  seed: 1\n    steps: 2\n`, ["5:9 syntax"]],
  ["a key without a colon", `${right}run\n`, ["4:1 syntax"]],
  ["two documents", `${right}---\n${right}`, ["4:1 syntax"]],
  ["a colon in plain text", `${right}run: name: x\n`, ["4:6 syntax"]],
  ["a control character", `${right}run: { name: "\u0000" }\n`, ["4:14 wrong-value"]],
  // Whole files.
  ["an empty file", "", nothing],
  ["blanks alone", " \n\n", nothing],
  ["comments alone", "# molt-runner\n# nothing yet\n", nothing],
  ["null", "null\n", nothing],
  ["a list at top level", "- actor\n- data\n", ["1:1 syntax"]],
  ["text at top level", "actor\n", ["1:1 syntax"]],
  [
    "JSON with a slip",
    '{"actor": {"model_name_or_path": "m", "init": "rnadom"}}\n',
    ["1:1 required", "1:1 required", "1:47 wrong-value"],
  ],
  ["CRLF", `${right}run: { sed: 1 }\n`.replaceAll("\n", "\r\n"), ["4:8 unknown-key"]],
  ["a byte order mark", `\uFEFF${right}run: { sed: 1 }\n`, ["4:8 unknown-key"]],
  ["emoji before a slip", `${right}run: { name: "🙂", sed: 1 }\n`, ["4:14 wrong-value", "4:20 unknown-key"]],
  ["1 MB of comments, then a slip", `${sized("", "# x\n", 999_000)}${right}rnu: {}\n`, ["249754:1 unknown-key"]],
  ["1 MB of text in a value", `${right}run: { name: ${"x y".repeat(330_000)} }\n`, ["4:14 wrong-value"]],
  ["more than 1 MB", sized(right, "# x\n", 1_000_001), ["1:1 syntax"]],
  ["a deep list", `${right}run: ${"[".repeat(50_000)}`, ["1:1 syntax"]],
  // Parents.
  ["a parent that is not there", `extends: none.yaml\n${right}`, ["1:10 extends"]],
  ["a parent that is a list", `extends: [a]\n${right}`, ["1:10 extends"]],
  ["a parent with a slip", `extends: faulty.yaml\n${right}`, ["1:10 unknown-key"]],
  ["parents in a circle", `extends: circle.yaml\n${right}`, ["1:10 extends"]],
  ["a misspelt extends", `extend: parent.yaml\n${right}`, ["1:1 unknown-key"]],
];

afterEach(() => vi.unstubAllEnvs());

test("there are at least forty", () => {
  expect(new Set(wrong.map(([name]) => name)).size).toBe(wrong.length);
  expect(wrong.length).toBeGreaterThanOrEqual(40);
  expect(found(`extends: parent.yaml\n`)).toEqual([]);
});

test.each(wrong)("%s", (_, text, expected) => {
  expect(found(text)).toEqual(expected);
});

test("of thousands of slips a hundred are shown", () => {
  const lines = Array.from({ length: 40_000 }, (_, i) => `  seed${i}: ${i}\n`).join("");
  expect(found(`${right}run:\n${lines}`)).toHaveLength(100);
});

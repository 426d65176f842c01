import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { read } from "../../test/tree.ts";
import { mentionsOf } from "./mentions.ts";
import { recordOf } from "./record.ts";
import { parseModule } from "./syntax.ts";

/** `kind name`, with `*` where it is made, in the order of the text. */
function said(code: string, path = "it.ts"): string[] {
  const mentions = mentionsOf(parseModule(code)!, path);
  mentions.sort((a, b) => a.line - b.line || a.character - b.character);
  return mentions.map(({ kind, name, defines, target }) => {
    return `${kind} ${name}${defines ? "*" : ""}${target ? ` -> ${target}` : ""}`;
  });
}

describe("what a module says of recipes and runs", () => {
  it.each([
    [
      "a registry, by the key that its docstring begins with",
      "/** `algo.advantage.estimator`. */\nexport const all: Record<string, E> = { plain, other_name: otherName };",
      ["estimator plain* -> plain", "estimator other_name* -> otherName"],
    ],
    [
      "one whose entries are functions",
      "/** `algo.dynamic_filtering`, and why. */\nexport const all = { off: () => null } satisfies Filters;",
      ["filter off*"],
    ],
    [
      "an agent",
      "export default class A extends Env {}\nclass B extends ChatAgent {}\nclass C extends D {}",
      ["agent A*", "agent B*"],
    ],
    [
      "events: their types, and what is emitted",
      "const runEvent = z.union([z.object({ type: z.literal('a'), n }), z.object({ type: z.literal('b') })]);\n" +
        "log.emit({ time, type: 'a' });\npost({ type: 'a' });",
      ["event a*", "event b*", "event a"],
    ],
    [
      "events that are asked for, where they are imported",
      'import "../events.ts";\nswitch (it.type) { case "a": }\nit.type === "b";\nlet c: EventOf<"c">;',
      ["event a", "event b", "event c"],
    ],
    ["other messages' types", 'switch (it.type) { case "a": }\nif (it.type === "b") {}', []],
    [
      "metrics in an object of that name, and what is spread into it",
      "const more = { b: 1 };\nconst metrics = { a, ...more, ...(x && { c: 2 }), ...metrics, ...sumOf(x), sums: {} };",
      ["metric b*", "metric a*", "metric c*"],
    ],
    [
      "metrics that are added, assigned and read",
      "Object.assign(metrics, { a: 1 });\nmetrics.b = 2;\nmetrics.b += metrics.c!;\nconst { d: e } = run.metrics;",
      ["metric a*", "metric b*", "metric b*", "metric c", "metric d"],
    ],
    ["an eval's metric", 'push({ metric: "sampled", other: "x" });', ["metric sampled*"]],
    [
      "metrics that are asked for by name",
      'metric("a", "b");\nkey(1, { metrics: ["c", d] });',
      ["metric a", "metric c"],
    ],
    ["recipe keys", "const f = ({ eval: { steps } }: Recipe) => steps;", ["key eval", "key eval.steps"]],
    ["nothing in text", '// metrics.a\nf("metrics.a", `metrics.b`);', []],
  ])("%s", (_, code, expected) => {
    expect(said(code)).toEqual(expected);
  });

  it("in a section's file of the schema, its keys, nested sections, and the words that a registry has", () => {
    const code = `const inner = section("An inner one.", { lr: key(positive, 1, { description: "lr" }) });
export const algo = section("One.", {
  inner,
  advantage: section("Advantages.", { estimator: key(z.enum(["grpo", "rloo"]), "grpo", { description: "…" }) }),
  other: key(z.enum(["x"]), "x", { description: "…" }),
});`;
    expect(said(code, "src/recipe/schema/algo.ts")).toEqual([
      "key algo.inner.lr*",
      "key algo*",
      "key algo.inner*",
      "key algo.advantage*",
      "key algo.advantage.estimator*",
      "estimator grpo",
      "estimator rloo",
      "estimator grpo",
      "key algo.other*",
    ]);
    expect(said(code, "src/other/algo.ts")).toEqual([]);
  });
});

describe("a record", () => {
  it.each([
    ["constants that are spread into themselves", "const a = { b: 1, ...a };\nconst metrics = { ...a };", ["b"]],
    [
      "sections that are each other",
      "const a = b;\nconst b = a;\nexport const algo = section('', { a });",
      ["algo", "algo.a"],
    ],
    [
      "what is nested too deeply to be walked",
      `const metrics = { a: ${"-(".repeat(20_000)}1${")".repeat(20_000)} };`,
      [],
    ],
    ["what does not parse", "const metrics = { a: 1 }; class {{{ `", []],
    ["types that lack their parameters", 'import "./events.ts";\nlet a: EventOf; const runEvent = { type };', []],
    ["an empty file", "", []],
  ])("is made of %s", (_, code, names) => {
    expect(recordOf(code, "recipe/schema/algo.ts").mentions.map(({ name }) => name)).toEqual(names);
  });

  it("has what a list exports, by the names that others import", () => {
    const code = 'const a = 1, b = 2;\nexport { a, b as c };\nexport { d as "x y" } from "./d.ts";\nexport default a;';
    const { symbols, summary } = recordOf(code, "it.ts");
    const exported = symbols.filter((one) => one.exported).map(({ name, line }) => `${name} ${line}`);
    expect([exported, summary]).toEqual([["a 1", "c 1", "x y 2", "default 3"], "a"]);
  });

  it("is made of any half-typed text", () => {
    const code = read("runner/src/telemetry/summary.ts");
    const place = fc.nat(code.length);
    fc.assert(
      fc.property(place, place, fc.string({ unit: "binary", maxLength: 8 }), (from, to, typed) => {
        const record = recordOf(code.slice(0, from) + typed + code.slice(to), "it.ts");
        expect(record.tokens).toBeGreaterThanOrEqual(0);
      }),
    );
  });
});

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { stringify } from "yaml";
import { recipeKeys } from "../../runner/src/recipe/index.ts";
import { format } from "../src/service/format.ts";
import { applied, documentAt, path, sound, values } from "./golden.ts";

function formatted(text: string): string {
  const document = documentAt(path, text);
  return applied(document, format(document));
}

describe("formatting", () => {
  it.each([
    ["indentation and spaces", "rollout:\n      top_p:   1\n", "rollout:\n  top_p: 1\n"],
    ["braces", "rollout: {top_p: 1,  batch_size: 4}\n", "rollout: { top_p: 1, batch_size: 4 }\n"],
    ["a missing end of line", "rollout: { top_p: 1 }", "rollout: { top_p: 1 }\n"],
    ["Windows line ends stay", "rollout:\r\n    top_p: 1\r\n", "rollout:\r\n  top_p: 1\r\n"],
  ])("%s", (_, text, expected) => {
    expect(formatted(text)).toBe(expected);
  });

  it("keeps comments, blank lines, quotes, numbers as they are written and long lines", () => {
    const text = `# molt-runner
# Two lines.

run: { name: 'sort', seed: 0x10 } # behind

actor:
  # above
  adam: { lr: 1.0e-3 }

data:
  # ${"long ".repeat(40)}
  prompt_dataset: "${"long ".repeat(40)}.jsonl" # and behind
`;
    expect(formatted(text)).toBe(text);
  });

  it.each(["rollout: { top_p: 1\n", "rollout: [*a]\n", "run:\n\tseed: 1\n", "run: 1\n---\nrun: 2\n", "", "run: {}\n%"])(
    "leaves %j alone",
    (text) => {
      expect(formatted(text)).toBe(text);
    },
  );

  it("leaves the shipped style alone", () => {
    expect(formatted(sound)).toBe(sound);
  });

  // What a recipe can hold: sections of keys with any scalar or list, in any layout, with comments between.
  const scalar = fc.oneof(fc.string({ unit: "binary" }), fc.integer(), fc.double(), fc.boolean(), fc.constant(null));
  const value = fc.oneof(scalar, fc.array(scalar, { maxLength: 3 }));
  const section = fc.dictionary(fc.constantFrom("seed", "name", "dir", "a b", "#", "-"), value, { maxKeys: 4 });
  const names = fc.constantFrom(...new Set([...recipeKeys.keys()].map((key) => key.split(".")[0]!)));
  const layout = fc.record({
    indent: fc.integer({ min: 1, max: 6 }),
    lineWidth: fc.constantFrom(0, 20, 80),
    collectionStyle: fc.constantFrom<"any" | "block" | "flow">("any", "block", "flow"),
  });
  const noise = fc.array(fc.constantFrom("# a comment", "", "  # deeper"), { maxLength: 3 });

  it("changes no value, loses no comment, and nothing the second time", () => {
    fc.assert(
      fc.property(fc.dictionary(names, section, { minKeys: 1 }), layout, noise, (recipe, options, lines) => {
        const text = `# molt-runner\n${stringify(recipe, options)}${lines.join("\n")}`;
        const once = formatted(text);
        expect(values(once)).toEqual(values(text));
        expect(once.match(/# (a comment|deeper|molt-runner)/g)).toEqual(
          text.match(/# (a comment|deeper|molt-runner)/g),
        );
        expect(formatted(once)).toBe(once);
      }),
      { numRuns: 300 },
    );
  });
});

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type CodeSource, codeMap } from "./code-map.ts";
import { codeContext, roomsOf } from "./context.ts";
import { CodeFolder } from "./folder.ts";

const base = `/** What is shared. More of it. */
export interface Shared {
  /** In rows. */
  size: number;
}

/** Doubles a size. */
export function twice({ size }: Shared): number {
  return helper(size) * 2;
}

function helper(size: number): number {
  return size;
}
`;
const user = `// Uses what is shared.
import { type Shared, twice } from "../base.ts";
import { readFileSync } from "node:fs";

/** A counter. */
export class Counter {
  private readonly hidden = 1;
  /** Of all. */
  readonly total: number;
  constructor(it: Shared) {
    this.total = twice(it);
  }
  /** One more. */
  add = (more: number) => {
    return this.hidden + more;
  };
  /** Nobody's. */
  private drop(): void {}
}

export const double = (n: number) => n * 2;
`;

let folder: string;
let sources: CodeSource[];
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "molt-context-"));
  mkdirSync(join(folder, "src", "inner", "deep"), { recursive: true });
  writeFileSync(join(folder, "src", "inner", "base.ts"), base);
  writeFileSync(join(folder, "src", "inner", "deep", "user.ts"), user);
  writeFileSync(join(folder, "main.mjs"), 'import "./src/inner/base.js";\n');
  sources = [
    { folder: new CodeFolder(folder), title: "mine/", rooms: new Map([["mine/src/inner", "what is inside"]]) },
  ];
});
afterAll(() => rmSync(folder, { recursive: true }));

describe("the map", () => {
  it("has rooms, files in a line, exported names, and who imports whom", () => {
    expect(codeMap(sources)).toEqual({
      rooms: [
        expect.objectContaining({
          room: "mine",
          files: [expect.objectContaining({ imports: ["mine/src/inner/base.ts"] })],
        }),
        {
          room: "mine/src/inner",
          summary: "what is inside",
          // 3.8 characters a token, each file rounded up.
          tokens: Math.ceil(base.length / 3.8) + Math.ceil(user.length / 3.8),
          files: [
            {
              file: "mine/src/inner/base.ts",
              summary: "What is shared",
              tokens: Math.ceil(base.length / 3.8),
              exports: ["Shared", "twice"],
              imports: [],
              importedBy: ["mine/main.mjs", "mine/src/inner/deep/user.ts"],
            },
            expect.objectContaining({
              summary: "Uses what is shared",
              exports: ["Counter", "double"],
              imports: ["mine/src/inner/base.ts"],
              importedBy: [],
            }),
          ],
        },
      ],
    });
  });
});

describe("context", () => {
  const contextOf = (budget: number, rooms: string[] = []) => codeContext(sources, { rooms, budget });

  it("is the source, whole, where the budget allows, and of the rooms asked for", () => {
    const { text, wholeTokens, files } = contextOf(2000, ["inner"]);
    expect(text).toContain(base.trimEnd());
    expect(text).toContain(user.trimEnd());
    expect(files.map(({ file }) => file)).toEqual(["mine/src/inner/base.ts", "mine/src/inner/deep/user.ts"]);
    expect(contextOf(wholeTokens, ["inner"]).text).toBe(text);
    expect(contextOf(2000, ["inner/deep"]).files).toHaveLength(1);
    expect(contextOf(2000, ["mine"]).files).toHaveLength(3);
  });

  it("gives a line of each before the source, of what most others import first", () => {
    const formsAt = (budget: number) => contextOf(budget, ["inner"]).files.map(({ form }) => form);
    expect(formsAt(0)).toEqual(["left out", "left out"]);
    expect(formsAt(32)).toEqual(["line", "line"]);
    expect(formsAt(32 + Math.ceil(base.length / 3.8))).toEqual(["whole", "line"]);
  });

  it("never takes more than its budget, whatever that is", () => {
    fc.assert(
      fc.property(fc.nat(500), (budget) => {
        const { text, tokens, files, wholeTokens } = contextOf(budget);
        expect(tokens).toBe(Math.ceil(text.length / 3.8));
        expect(tokens).toBeLessThanOrEqual(budget);
        expect(files).toHaveLength(3);
        expect(files.every(({ form }) => form === "whole")).toBe(budget >= wholeTokens);
      }),
    );
  });

  it("counts of a room's map only what is asked for", () => {
    const [room] = roomsOf(codeMap(sources), ["inner/deep"]).rooms;
    expect([room!.tokens, room!.files.length]).toEqual([Math.ceil(user.length / 3.8), 1]);
  });

  it("names the rooms there are where one is not there", () => {
    expect(() => contextOf(100, ["innner"])).toThrow("there is no room 'innner'");
  });
});

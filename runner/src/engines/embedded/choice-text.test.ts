import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Tokenizer } from "../../data/tokenizer.ts";
import { ChoiceText, type TextOptions } from "./choice-text.ts";

const tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../data/fixtures/bytelevel", import.meta.url)));
const end = 2;
const off: TextOptions = {
  stop: [],
  includeStop: false,
  skipSpecial: true,
  tokenTexts: true,
  stopTokenIds: new Set([end]),
};

/** Text after all tokens, or up to the one that ended it, and the parts in which it was shown. */
async function read(ids: number[], options: Partial<TextOptions> = {}) {
  const text = new ChoiceText(tokenizer, { ...off, ...options });
  const parts: string[] = [];
  for (const id of ids) {
    await text.push(id);
    parts.push(text.release(false));
    if (text.stopString !== null) break;
  }
  parts.push(text.release(true));
  return { text: text.text, parts, stopString: text.stopString, tokenTexts: text.tokenTexts };
}

describe("the text of tokens that come one by one", () => {
  it.each(["plain words, and  two spaces", "zwölf Boxkämpfer", "日本語 🙂👩‍👩‍👧", "a\n\tb\r\n"])(
    "is the text that went in: %j",
    async (input) => {
      const ids = await tokenizer.encode(input);
      const { text, parts, tokenTexts } = await read(ids);
      expect(text).toBe(input);
      expect(parts.join("")).toBe(input);
      expect(tokenTexts.join("")).toBe(input);
      expect(parts.filter((part) => part.includes("\ufffd"))).toEqual([]);
    },
  );

  it("is, for any text, what went in, however its characters are cut into tokens", async () => {
    const texts = fc.string({ unit: "grapheme", maxLength: 30 });
    await fc.assert(
      fc.asyncProperty(texts, async (input) => {
        const { text, parts } = await read(await tokenizer.encode(input), { skipSpecial: false });
        // A replacement character cannot be told from an unfinished one: it waits for what follows.
        fc.pre(!input.includes("\ufffd"));
        expect([text, parts.join("")]).toEqual([input, input]);
      }),
      { numRuns: 100 },
    );
  });

  it("leaves an unfinished character at the end out, as vLLM", async () => {
    const ids = await tokenizer.encode("ab🙂");
    expect((await read(ids.slice(0, -1))).text).toBe("ab");
  });

  it("has no stop token and no special token, unless asked for", async () => {
    const [a] = await tokenizer.encode("a");
    const ids = [a!, 1, a!, end];
    expect((await read(ids)).text).toBe("aa");
    expect((await read(ids, { skipSpecial: false })).text).toBe("a<|im_start|>a");
    expect((await read(ids, { skipSpecial: false, includeStop: true })).text).toBe("a<|im_start|>a<|im_end|>");
    expect((await read(ids)).tokenTexts).toEqual(["a", "<|im_start|>", "a", "<|im_end|>"]);
  });
});

describe("stop strings", () => {
  it("end the text before themselves, or after, across tokens", async () => {
    const ids = await tokenizer.encode("one two three");
    const stopped = await read(ids, { stop: ["o th"] });
    expect(stopped).toMatchObject({ text: "one tw", stopString: "o th" });
    expect(stopped.parts.join("")).toBe("one tw");
    expect((await read(ids, { stop: ["o th"], includeStop: true })).text).toBe("one two th");
  });

  it("cut where the one that ends first cuts, whatever the order and the tokens; nothing cut was shown", async () => {
    const letters = (maxLength: number) => fc.string({ unit: fc.constantFrom("a", "b", " "), maxLength });
    const stops = fc.array(
      letters(4).filter((stop) => stop !== ""),
      { minLength: 1, maxLength: 3 },
    );
    await fc.assert(
      fc.asyncProperty(letters(24), stops, fc.boolean(), async (input, stop, includeStop) => {
        const ids = await tokenizer.encode(input);
        const { text, parts, stopString } = await read(ids, { stop, includeStop });
        // By hand: the shortest prefix of the text that ends with a stop string.
        const ends = Array.from({ length: input.length + 1 }, (_, length) => length);
        const at = ends.find((length) => stop.some((one) => input.slice(0, length).endsWith(one)));
        expect(stopString === null).toBe(at === undefined);
        expect(parts.join("")).toBe(text);
        if (at === undefined) expect(text).toBe(input);
        else {
          const candidates = stop.filter((one) => input.slice(0, at).endsWith(one));
          const cuts = candidates.map((one) => (includeStop ? at : at - one.length));
          expect(cuts).toContain(text.length);
          expect(input.startsWith(text)).toBe(true);
          expect(candidates).toContain(stopString);
        }
      }),
      { numRuns: 150 },
    );
  });
});

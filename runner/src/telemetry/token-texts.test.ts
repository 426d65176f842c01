import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { expect, it } from "vitest";
import { Tokenizer } from "../data/tokenizer.ts";
import { specialTokens, tokenTexts } from "./token-texts.ts";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

it("writes the bytes of a character that tokens share, and special tokens as they are", async () => {
  const tokenizer = await Tokenizer.load(here("../data/fixtures/bytelevel"));
  const said = async (text: string) => tokenTexts(tokenizer, Int32Array.from(await tokenizer.encode(text)));
  // UTF-8 of U+2713 and of U+1F600, by hand.
  expect((await said("a ✓")).join("")).toBe("a <0xE2><0x9C><0x93>");
  expect((await said("\u{1f600}\n")).join("")).toBe("<0xF0><0x9F><0x98><0x80>\n");
  const special = tokenizer.stopTexts[0]!;
  expect((await said(`x${special}`)).at(-1)).toBe(special);
  const ids = Int32Array.from(await tokenizer.encode(`x${special}`));
  expect(await specialTokens(tokenizer, ids)).toEqual([ids.at(-1)]);
});

it("says all that was encoded, byte for byte", async () => {
  const tokenizer = await Tokenizer.load(here("../data/fixtures/bytelevel"));
  const bytesOf = (text: string) =>
    Buffer.concat(
      text
        .split(/(<0x[0-9A-F]{2}>)/)
        .map((part) => (/^<0x..>$/.test(part) ? Buffer.of(Number(part.slice(1, -1))) : Buffer.from(part))),
    );
  await fc.assert(
    fc.asyncProperty(fc.string({ unit: "grapheme", maxLength: 20 }), async (text) => {
      const tokens = Int32Array.from(await tokenizer.encode(text));
      const said = bytesOf((await tokenTexts(tokenizer, tokens)).join("")).toString();
      expect(said).toBe(await tokenizer.decode([...tokens]));
    }),
    { numRuns: 200 },
  );
});

it("keeps the space that a word of SentencePiece begins with", async () => {
  const decodeBatch = async (ids: number[][]) => ids.map(([id]) => ["the", "s", " big"][id!]!);
  const textOf = (id: number) => ["▁the", "s", "▁big"][id]!;
  expect(await tokenTexts({ decodeBatch, textOf }, Int32Array.of(0, 1, 2))).toEqual([" the", "s", " big"]);
});

import type { Tokenizer } from "../data/tokenizer.ts";

/** By the character that byte-level vocabularies write a byte as (GPT-2's table: printable ones are themselves). */
const byteOf = new Map<string, number>();
for (let byte = 0, next = 256; byte < 256; byte++) {
  const isPrintable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  byteOf.set(String.fromCharCode(isPrintable ? byte : next++), byte);
}

/** What each token says, special ones too. Bytes of a character that several tokens share are written `<0xE2>`. */
export async function tokenTexts(
  tokenizer: Pick<Tokenizer, "decodeBatch" | "textOf">,
  tokens: Int32Array,
): Promise<string[]> {
  const ids = [...new Set(tokens)];
  const decoded = await tokenizer.decodeBatch(ids.map((id) => [id]));
  const textOf = new Map(ids.map((id, at) => [id, tokenText(decoded[at]!, tokenizer.textOf(id) ?? "")]));
  return [...tokens].map((id) => textOf.get(id)!);
}

/** The special ones among them: no text that is sampled letter by letter is one, whatever it looks like. */
export async function specialTokens(tokenizer: Pick<Tokenizer, "decodeBatch">, tokens: Int32Array): Promise<number[]> {
  const ids = [...new Set(tokens)];
  const [all, plain] = await Promise.all(
    [false, true].map((skip) =>
      tokenizer.decodeBatch(
        ids.map((id) => [id]),
        skip,
      ),
    ),
  );
  return ids.filter((_, at) => all![at] !== "" && plain![at] === "");
}

/** `entry`: how the vocabulary writes the token. */
function tokenText(decoded: string, entry: string): string {
  // A decoder takes the space from the beginning of a text, and to it each token is one.
  if (entry.startsWith("▁") && !decoded.startsWith(" ")) return ` ${decoded}`;
  if (!decoded.includes("\ufffd") || ![...entry].every((character) => byteOf.has(character))) return decoded;
  const bytes = [...entry].map((character) => byteOf.get(character)!);
  const shown = (byte: number) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
  return bytes.map((byte) => (byte < 0x80 ? String.fromCharCode(byte) : shown(byte))).join("");
}

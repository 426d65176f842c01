/**
 * Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a draw depends on key and
 * counter alone, never on what else was drawn.
 */
export function philox(counter: [number, number, number, number], key: [number, number]): Uint32Array {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < 10; round++) {
    const high0 = multiplyHigh(0xd2511f53, c0);
    const high1 = multiplyHigh(0xcd9e8d57, c2);
    const low0 = Math.imul(0xd2511f53, c0);
    const low1 = Math.imul(0xcd9e8d57, c2);
    [c0, c1, c2, c3] = [high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0];
    k0 = (k0 + 0x9e3779b9) | 0;
    k1 = (k1 + 0xbb67ae85) | 0;
  }
  return Uint32Array.of(c0, c1, c2, c3);
}

/** The upper half of the product, by way of parts that doubles hold. */
function multiplyHigh(a: number, b: number): number {
  const factor = b >>> 0;
  return Math.floor(((a >>> 16) * factor + Math.floor(((a & 0xffff) * factor) / 0x10000)) / 0x10000);
}

/**
 * A draw in [0, 1), of 53 bits, for the token at `position` (from the prompt's start): a request that goes on
 * elsewhere, after an abort or from an empty cache, samples the same tokens.
 */
export function uniform(seed: number, position: number): number {
  const [high, low] = philox([position, 0, 0, 0], [seed % 0x100000000, Math.floor(seed / 0x100000000)]);
  return ((high! >>> 6) * 0x8000000 + (low! >>> 5)) / 0x20000000000000;
}

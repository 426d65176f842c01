import type { MoeConfig } from "molt-native";

/** Experts of a sequence's tokens, as steps told them. What is known of a position stays: whoever sampled from it. */
export class ExpertRoutes {
  positions = 0;
  private ids: Int16Array[] = [];

  /** Of `count` positions from `from` on. */
  add(ids: Int16Array, from: number, count: number): void {
    const known = this.positions - from;
    if (known >= count) return;
    this.ids.push(ids.subarray((known * ids.length) / count));
    this.positions = from + count;
  }

  /** Those of a sequence that begins with the same `count` tokens. */
  share(other: ExpertRoutes, count: number): void {
    const ids = other.all();
    this.add(ids.subarray(0, (count * ids.length) / other.positions), 0, count);
  }

  /** `[positions, mixtures, experts a token]`. */
  all(): Int16Array {
    const whole = new Int16Array(this.ids.reduce((sum, { length }) => sum + length, 0));
    let begin = 0;
    for (const part of this.ids) {
      whole.set(part, begin);
      begin += part.length;
    }
    this.ids = [whole];
    return whole;
  }
}

/** vLLM's form: base64 of an .npy file, `[positions, layers, experts a token]`; a dense layer's are 0. */
export function encodeRoutes(routes: ExpertRoutes, { numExperts, expertsPerToken, layers }: MoeConfig): string {
  const [type, Ids] = numExperts <= 256 ? ["|u1", Uint8Array] : ["<u2", Uint16Array];
  const shape = [routes.positions, layers.length, expertsPerToken];
  const ids = new Ids(shape.reduce((product, size) => product * size));
  const known = routes.all();
  let from = 0;
  for (let to = 0; to < ids.length; to += expertsPerToken) {
    if (!layers[(to / expertsPerToken) % layers.length]) continue;
    ids.set(known.subarray(from, from + expertsPerToken), to);
    from += expertsPerToken;
  }
  const header = `{'descr': '${type}', 'fortran_order': False, 'shape': (${shape.join(", ")}), }`;
  // Magic, version 1.0 and the header's length take 10 bytes, its line feed one; the data begin at a multiple of 64.
  const length = Math.ceil((header.length + 11) / 64) * 64 - 10;
  const start = Buffer.from(`\x93NUMPY\x01\x00..${header.padEnd(length - 1)}\n`, "latin1");
  start.writeUInt16LE(length, 8);
  return Buffer.concat([start, Buffer.from(ids.buffer)]).toString("base64");
}

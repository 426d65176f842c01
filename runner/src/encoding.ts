import { Packr } from "msgpackr";

// `moreTypes` keeps typed arrays what they are (Int32Array, Float32Array with NaN); records need a shared structure.
const packr = new Packr({ moreTypes: true, useRecords: false, int64AsType: "number" });

/** The one binary encoding: rank messages, stored rollouts, loop state. */
export const pack = (value: unknown): Buffer => packr.pack(value);
export const unpack = (bytes: Uint8Array): unknown => packr.unpack(bytes);

/** What a stranger sent first; null where that is no message. */
export function unpackHello<T>(bytes: Uint8Array): T | null {
  try {
    return unpack(bytes) as T | null;
  } catch {
    return null;
  }
}

import { RunnerError } from "../errors.ts";

/** Experts of each position of a prompt and its reply but the last: `[positions, layers x experts a token]`. */
export interface Routes {
  ids: Int16Array;
  /** Layers x experts a token; those of a dense layer are 0. */
  width: number;
}

/** vLLM's `routed_experts`: base64 of an .npy file, `[positions, layers, experts a token]`, uint8 or uint16. */
export function parseRoutes(text: string): Routes {
  const bytes = Buffer.from(text, "base64");
  if (bytes.length < 12 || bytes.toString("latin1", 1, 6) !== "NUMPY") throw bad("no .npy file");
  // The format's version 1 has a length of two bytes, later ones of four (numpy.lib.format).
  const [length, begin] = bytes[6] === 1 ? [bytes.readUInt16LE(8), 10] : [bytes.readUInt32LE(8), 12];
  const header = bytes.toString("latin1", begin, begin + length);
  const found = /'descr': '[|<](u[12])', 'fortran_order': False, 'shape': \((\d+), (\d+), (\d+)\)/.exec(header);
  if (!found) throw bad(`an array of ${header.trim()}`);
  const [positions, layers, experts] = found.slice(2).map(Number) as [number, number, number];
  const size = positions * layers * experts;
  const data = bytes.subarray(begin + length);
  const width = found[1] === "u1" ? 1 : 2;
  if (data.length !== size * width) throw bad(`${data.length} bytes for ${found[2]} x ${found[3]} x ${found[4]} ids`);
  const ids = Int16Array.from({ length: size }, (_, i) => (width === 1 ? data[i]! : data.readUInt16LE(2 * i)));
  return { ids, width: layers * experts };
}

/** Throws unless they are of each token of prompt and reply but the last. */
export function checkRoutes({ ids, width }: Routes, tokens: number): void {
  if (ids.length !== (tokens - 1) * width) throw bad(`routes of ${ids.length / width} positions for ${tokens} tokens`);
}

/** Of a request that went on after `kept`, which was sampled as it says. */
export function joinRoutes(kept: Routes | undefined, whole: Routes | undefined): Routes | undefined {
  if (!kept || !whole) return kept ?? whole;
  const ids = new Int16Array(Math.max(kept.ids.length, whole.ids.length));
  ids.set(whole.ids);
  ids.set(kept.ids);
  return { ids, width: whole.width };
}

/** From a position on, in memory of their own. */
export function routesFrom({ ids, width }: Routes, position: number): Routes {
  return { ids: ids.slice(position * width), width };
}

function bad(what: string): RunnerError {
  return new RunnerError(`routed_experts of the engine's answer hold ${what}`);
}

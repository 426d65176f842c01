import { isUtf8 } from "node:buffer";

/** Bytes that are no text; `line`, from 1, is the first that is not UTF-8. */
export class Utf8Error extends Error {
  readonly line: number;
  constructor(line: number) {
    super("its bytes are not UTF-8");
    this.line = line;
  }
}

/** Strict, unlike `Buffer.toString`, which puts U+FFFD in place of what it cannot read. */
export function decodeUtf8(bytes: Buffer): string {
  if (isUtf8(bytes)) return bytes.toString("utf8");
  let line = 1;
  for (let start = 0; ; line++) {
    const newline = bytes.indexOf(0x0a, start);
    if (newline < 0 || !isUtf8(bytes.subarray(start, newline))) throw new Utf8Error(line);
    start = newline + 1;
  }
}

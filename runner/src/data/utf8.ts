import { isUtf8 } from "node:buffer";

/** `line`, from 1, is the first that is not UTF-8. */
export class Utf8Error extends Error {
  readonly line: number;
  constructor(line: number) {
    super("its bytes are not UTF-8");
    this.line = line;
  }
}

/** Strict, where `Buffer.toString` puts U+FFFD. */
export function decodeUtf8(bytes: Buffer): string {
  if (isUtf8(bytes)) return bytes.toString("utf8");
  let line = 1;
  for (let start = 0; ; line++) {
    const newline = bytes.indexOf(0x0a, start);
    if (newline < 0 || !isUtf8(bytes.subarray(start, newline))) throw new Utf8Error(line);
    start = newline + 1;
  }
}

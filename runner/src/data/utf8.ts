import { isUtf8 } from "node:buffer";

/** Of a text's `line`, from 1. */
export class TextError extends Error {
  readonly line: number;
  constructor(message: string, line: number) {
    super(message);
    this.line = line;
  }
}

/** Strict, where `Buffer.toString` puts U+FFFD. */
export function decodeUtf8(bytes: Buffer): string {
  if (isUtf8(bytes)) return bytes.toString("utf8");
  const lines = bytes.toString("latin1").split("\n");
  const first = lines.findIndex((line) => !isUtf8(Buffer.from(line, "latin1")));
  throw new TextError("its bytes are not UTF-8", first + 1);
}

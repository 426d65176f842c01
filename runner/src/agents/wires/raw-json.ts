import { randomUUID } from "node:crypto";

const mark = randomUUID();
const marked = new RegExp(`"${mark}([^"\\\\]*(?:\\\\.[^"\\\\]*)*)"`, "g");

/** JSON text inside a body to be: `toJson` writes it as it stands, so that a sampled 1.0 stays 1.0 (case J5). */
export function rawJson(text: string): object {
  return { toJSON: () => mark + text };
}

/** `JSON.stringify`, with each `rawJson` as the text that it is. */
export function toJson(body: object): string {
  return JSON.stringify(body).replace(marked, (_, text) => JSON.parse(`"${text}"`));
}

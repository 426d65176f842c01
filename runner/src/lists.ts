/** `a, b and 3 more`. */
export function shorten(items: readonly string[], most: number): string {
  return items.slice(0, most).join(", ") + (items.length > most ? ` and ${items.length - most} more` : "");
}

/** One a line, below the message that they belong to. */
export function indented(items: readonly string[], most = items.length): string {
  const more = items.length > most ? [`and ${items.length - most} more`] : [];
  return [...items.slice(0, most), ...more].map((item) => `\n    ${item}`).join("");
}

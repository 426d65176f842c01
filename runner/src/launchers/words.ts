/** A word as a POSIX shell takes it, whatever is in it. */
export function shellWord(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}

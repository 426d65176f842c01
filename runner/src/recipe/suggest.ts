/** Edits (insert, delete, replace, swap of neighbours) between two strings. */
export function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replace = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      row[j] = Math.min(replace, previous[j]! + 1, row[j - 1]! + 1, swapped ? before[j - 2]! + 1 : Infinity);
    }
    [before, previous] = [previous, row];
  }
  return previous[b.length]!;
}

/** How many edits still look like a slip. */
function tolerance(word: string): number {
  if (word.length <= 3) return 1;
  return word.length <= 7 ? 2 : 3;
}

/** The candidate that `word` was probably meant to be; earlier ones win ties. */
export function nearest(word: string, candidates: Iterable<string>): string | undefined {
  return best(word, candidates, (candidate) => editDistance(word.toLowerCase(), candidate.toLowerCase()));
}

/** The candidate of least score, if that is no more than a slip's. */
export function best(
  word: string,
  candidates: Iterable<string>,
  score: (candidate: string) => number,
): string | undefined {
  let found: string | undefined;
  let least = tolerance(word) + 1;
  for (const candidate of candidates) {
    const scored = score(candidate);
    if (scored < least) [found, least] = [candidate, scored];
  }
  return found;
}

/**
 * The key or section that `name`, unknown inside `section` ("" is the top), was probably meant to be, as a dotted path:
 * the nearest in the section, or one of the same or almost the same name elsewhere; a name cut short or spelt out
 * (`n_samples`, `algorithm`) is as near as one slip.
 */
export function suggestKey(section: string, name: string, known: Iterable<string>): string | undefined {
  return best(name, known, (path) => {
    const { parent, leaf } = splitKey(path);
    if (path === section) return Infinity;
    // Half an edit more for leaving the section: a slip of the finger is likelier than a wrong place.
    if (parent !== section) return editDistance(name, leaf) + 0.5;
    const isPart = Math.min(name.length, leaf.length) > 3 && (leaf.startsWith(name) || name.startsWith(leaf));
    return isPart ? 1 : editDistance(name, leaf);
  });
}

export function splitKey(key: string): { parent: string; leaf: string } {
  const dot = key.lastIndexOf(".");
  return { parent: key.slice(0, Math.max(0, dot)), leaf: key.slice(dot + 1) };
}

/** "30.5B", "87K". */
export const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Three digits and a unit: "61.1 GB", "1.34 TB". */
export function inBytes(value: number): string {
  const power = Math.min(5, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${Number((value / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB", "PB"][power]}`;
}

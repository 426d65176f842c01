/** What every verb with a recipe's keys as flags is given. */
export interface VerbOptions {
  /** Report in JSON. */
  json: boolean;
  /** By dotted key. */
  flags: Record<string, string>;
}

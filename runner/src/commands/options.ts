/** What every verb with a recipe's keys as flags is given. */
export interface VerbOptions {
  /** Report in JSON. */
  json: boolean;
  /** In a process of its own, which goes on without this one. */
  detach?: boolean;
  /** By dotted key. */
  flags: Record<string, string>;
}

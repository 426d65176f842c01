import { type Action, Env, type Row, type StepResult } from "molt-runner";

/** `get b` looks the key b up in the row's hidden table; `=7` answers; that, and anything else, ends the episode. */
export default class FollowPointers extends Env {
  step({ text }: Action, row: Row): StepResult {
    const table = row.fields.table as Record<string, string>;
    const found = table[/^get ([a-d])$/.exec(text)?.[1] ?? ""];
    if (found) return { reward: 0, done: false, messages: [{ role: "tool", content: found }] };
    return { reward: text === `=${row.label}` ? 1 : 0, done: true };
  }
}

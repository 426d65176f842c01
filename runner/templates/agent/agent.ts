import { type Action, Env, type Row, type StepResult } from "molt-runner";

/** What is trained: the reward of an answer. `row.label` is the line's `label` in data/train.jsonl. */
export default class SortDigits extends Env {
  step(action: Action, row: Row): StepResult {
    const isRight = action.text === row.label;
    return { reward: isRight ? 1 : 0, done: true };
  }
}

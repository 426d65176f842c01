import { type Action, Env, type Row, type StepResult } from "molt-runner";

/** One turn: reward 1 when the reply is the prompt's digits in order, else 0. */
export default class SortDigits extends Env {
  step(action: Action, row: Row): StepResult {
    return { reward: action.text === row.label ? 1 : 0, done: true };
  }
}

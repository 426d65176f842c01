import { type Action, Env, type StepResult } from "molt-runner";

/** Rewards the letter e, as grpo.py has it: any signal serves to measure time. */
export default class CountLetters extends Env {
  step(action: Action): StepResult {
    return { reward: (action.text.split("e").length - 1) / 64, done: true };
  }
}

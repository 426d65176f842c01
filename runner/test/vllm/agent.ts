import { type Action, Env, type StepResult } from "molt-runner";

/** One turn over the quickstart's prompts: the share of digits in the reply, which even a random policy varies. */
export default class Digits extends Env {
  step({ text }: Action): StepResult {
    return { reward: (text.match(/\d/g)?.length ?? 0) / Math.max(1, text.length), done: true };
  }
}

import { type Action, Env, type Row, type StepResult } from "molt-runner";

/** Reward: the part of the reply that is the capital's name, so 1 for the name alone and 0 for a reply without it. */
export default class Capitals extends Env {
  step(action: Action, row: Row): StepResult {
    const capital = String(row.label);
    const reply = action.text.trim();
    const isNamed = reply.includes(capital);
    return { reward: isNamed ? capital.length / reply.length : 0, done: true, info: { named: Number(isNamed) } };
  }
}

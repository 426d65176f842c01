import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { type Action, Env, type Row, type StepResult } from "molt-runner";

/** The quickstart's agent, whose thread ends, or never comes back, where a file asks for it. */
export default class Fragile extends Env {
  step(action: Action, row: Row): StepResult {
    if (this.isAsked("exit")) process.exit(7);
    while (this.isAsked("hang")) for (;;);
    return { reward: action.text === row.label ? 1 : 0, done: true };
  }

  private isAsked(what: string): boolean {
    const path = join(process.env.MOLT_CHAOS!, what);
    if (!existsSync(path)) return false;
    rmSync(path, { force: true });
    return true;
  }
}

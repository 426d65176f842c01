import { type Action, Env, mathAnswer, pythonTool, type StepResult } from "molt-runner";

const python = pythonTool({ timeout: 10 });
export const grade = mathAnswer();

/** The policy may run Python between its thoughts; a reply without a call ends the episode. */
export default class MathProblemWithPython extends Env {
  override reset() {
    return { tools: [python.schema] };
  }

  async step({ text }: Action): Promise<StepResult> {
    const call = /<tool_call>(.*?)<\/tool_call>/s.exec(text)?.[1];
    if (call === undefined) return { reward: 0, done: true };
    return { reward: 0, done: false, messages: [{ role: "tool", content: await python.call(call) }] };
  }
}

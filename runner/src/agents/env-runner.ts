import type { ToolSchema } from "../data/chat-template.ts";
import { DeadlineError, withDeadline } from "../deadline.ts";
import { ModelCalls } from "./model-calls.ts";
import { agentError, type RolloutContext, RolloutFailure, type RolloutTask, readResult, settle } from "./rollout.ts";
import type { ChatResult, Env, FailedRollout, Message, Rollout, StepResult, StopReason } from "./types.ts";

/** Whatever goes wrong comes back as data; only `signal` ends it early. */
export function runEnvRollout(
  createEnv: () => Env,
  task: RolloutTask,
  context: RolloutContext,
  signal: AbortSignal,
): Promise<Rollout | FailedRollout> {
  return settle(task, context.runId, () => new Episode(new ModelCalls(task, context, signal)).run(createEnv));
}

class Episode {
  private result: ChatResult = { reward: 0 };

  constructor(private readonly calls: ModelCalls) {}

  async run(createEnv: () => Env): Promise<Rollout> {
    const env = await this.callAgent("constructor", createEnv);
    let stop: StopReason;
    try {
      stop = await this.runTurns(env);
    } catch (error) {
      await this.callAgent("close", () => env.close()).catch(() => {}); // the first error is the one to report
      throw error;
    }
    await this.callAgent("close", () => env.close());
    return this.calls.toRollout(this.result, stop);
  }

  private async runTurns(env: Env): Promise<StopReason> {
    const { session, task, context } = this.calls;
    const { row } = task;
    const { maxTurns, rolloutSeconds } = context.limits;
    const reset = await this.callAgent("reset", () => env.reset(row));
    let messages = reset?.messages ?? row.messages;
    for (let turn = 0; turn < maxTurns; turn++) {
      const pending = await session.prepare(messages, reset?.tools as ToolSchema[] | undefined);
      if (this.calls.room(pending) < 1)
        return this.outOf("context", turn, `the prompt has ${pending.tokenIds.length} tokens, all of data.max_len`);
      const reply = await this.calls.sample(pending);
      if (!reply) return this.outOf("timeout", turn, `no reply within ${rolloutSeconds} s`);
      const { sampled, info } = reply;
      const text = await session.textOf(sampled);
      const message: Message = { role: "assistant", content: text };
      session.commit(pending, sampled, message, info);
      const result = await this.callAgent("step", () => env.step({ text, stop: info.stop, turn }, row));
      this.take(result);
      info.reward = result.reward;
      if (result.done) return "env_done";
      messages = [...messages, message, ...(result.messages ?? [])];
    }
    return "max_turns";
  }

  /** An episode that ends for want of room or time counts, if the policy has said anything. */
  private outOf(stop: "context" | "timeout", turn: number, message: string): StopReason {
    if (turn === 0) throw new RolloutFailure(stop, message);
    return stop;
  }

  private take(result: StepResult): void {
    const { reward, score, info, done, messages } = readResult(result, "step", "{ reward, done, messages? }");
    if (!done && !messages?.length) {
      throw new RolloutFailure("agent_error", "step returned neither done nor the next messages");
    }
    const before = this.result;
    this.result = {
      reward: before.reward + reward,
      score: score ?? before.score,
      info: result.info ? info : before.info,
    };
  }

  /** The user's code: its errors are data that name its line, and it cannot take longer than it may. */
  private async callAgent<T>(name: string, action: () => T | Promise<T>): Promise<T> {
    const { limits, locate } = this.calls.context;
    const what = `the agent's ${name}`;
    try {
      return await withDeadline(new Promise<T>((resolve) => resolve(action())), limits.toolSeconds, what);
    } catch (error) {
      if (error instanceof DeadlineError) throw new RolloutFailure("agent_timeout", error.message);
      throw agentError(what, error, locate);
    }
  }
}

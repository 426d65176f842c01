import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Tokenizer } from "../data/tokenizer.ts";
import { DeadlineError, deadlineMs, withDeadline } from "../deadline.ts";
import type { CallOptions } from "../engines/client.ts";
import type { EngineLease, GenerateRequest, GenerateResult, Router } from "../engines/types.ts";
import { messageOf } from "../errors.ts";
import { type PendingTurn, Session } from "./trajectory.ts";
import type { Env, FailedRollout, Message, Rollout, Row, StepResult, StopReason } from "./types.ts";

export interface RolloutSampling {
  temperature: number;
  topP: number;
  topK: number;
  /** Of one turn; null: what remains of `maxLen`. */
  maxNewTokens: number | null;
}

export interface RolloutTask {
  row: Row;
  groupId: string;
  rolloutId: string;
  attempt: number;
  sampling: RolloutSampling;
}

export interface RolloutLimits {
  /** Longest segment, prompt and replies together, in tokens. */
  maxLen: number;
  maxTurns: number;
  /** Of one episode; waits for a weight sync do not count. */
  rolloutSeconds: number;
  /** Of one model call, and of one call of the agent's own functions. */
  turnSeconds: number;
  /** Of one weight sync, for which model calls wait. */
  heldSeconds: number;
}

export interface RolloutContext {
  runId: string;
  /** `run.seed`. */
  seed: number;
  tokenizer: Tokenizer;
  limits: RolloutLimits;
  router: Router;
  generate(url: string, request: GenerateRequest, options: CallOptions): Promise<GenerateResult>;
  /** Names the agent's source line that an error comes from. */
  locate(error: unknown): string | undefined;
}

/** Why a rollout counts for nothing. The policy did not cause it. */
export type FailureReason =
  | "agent_error"
  | "agent_timeout"
  | "reward"
  | "context"
  | "engine"
  | "timeout"
  | "aborted"
  | "worker";

class RolloutFailure extends Error {
  readonly reason: FailureReason;
  constructor(reason: FailureReason, message: string) {
    super(message);
    this.reason = reason;
  }
}

const engineTries = 3;

/** Runs one episode. Whatever goes wrong comes back as data; only `signal` ends it early. */
export async function runEnvRollout(
  createEnv: () => Env,
  task: RolloutTask,
  context: RolloutContext,
  signal: AbortSignal,
): Promise<Rollout | FailedRollout> {
  try {
    return await new Episode(task, context, signal).run(createEnv);
  } catch (error) {
    const known = error instanceof RolloutFailure;
    return failedRollout(task, context.runId, known ? error.reason : "agent_error", messageOf(error));
  }
}

export function failedRollout(
  { row, groupId, rolloutId, attempt }: RolloutTask,
  runId: string,
  reason: FailureReason,
  message: string,
): FailedRollout {
  return { runId, promptId: row.id, groupId, rolloutId, attempt, reason, message };
}

/** The seed of one turn: the same on every rerun, another for every rollout, turn and position it goes on from. */
export function turnSeed(seed: number, rolloutId: string, turn: number, position = 0): number {
  return createHash("sha256").update(`${seed} ${rolloutId} ${turn} ${position}`).digest().readUIntBE(0, 6);
}

class Episode {
  private readonly task: RolloutTask;
  private readonly context: RolloutContext;
  private readonly signal: AbortSignal;
  private readonly session: Session;
  private readonly startedAt = Date.now();
  private heldMs = 0;
  private modelMs = 0;
  private reward = 0;
  private score: number | undefined;
  private info: Record<string, number> = {};

  constructor(task: RolloutTask, context: RolloutContext, signal: AbortSignal) {
    this.task = task;
    this.context = context;
    this.signal = signal;
    this.session = new Session(context.tokenizer);
  }

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
    const { row, groupId, rolloutId, attempt } = this.task;
    return {
      runId: this.context.runId,
      promptId: row.id,
      groupId,
      rolloutId,
      attempt,
      segments: this.session.toSegments(),
      reward: this.reward,
      score: this.score ?? this.reward,
      info: this.info,
      stop,
      timings: {
        startedAt: this.startedAt / 1000,
        seconds: (Date.now() - this.startedAt) / 1000,
        modelSeconds: this.modelMs / 1000,
      },
    };
  }

  private async runTurns(env: Env): Promise<StopReason> {
    const { task, context } = this;
    const { row } = task;
    const reset = await this.callAgent("reset", () => env.reset(row));
    let messages = reset?.messages ?? row.messages;
    for (let turn = 0; turn < context.limits.maxTurns; turn++) {
      const pending = await this.session.prepare(messages);
      const room = context.limits.maxLen - pending.tokenIds.length;
      if (room < 1)
        return this.outOf("context", turn, `the prompt has ${pending.tokenIds.length} tokens, all of data.max_len`);
      const sampled = await this.sample(pending, turn, room);
      if (!sampled) return this.outOf("timeout", turn, `no reply within ${context.limits.rolloutSeconds} s`);
      const text = await this.session.textOf(sampled);
      const message: Message = { role: "assistant", content: text };
      // Cut by the context's end, not by the turn's own limit.
      const stop = sampled.stop === "length" && sampled.tokenIds.length >= room ? "context" : sampled.stop;
      const { temperature } = task.sampling;
      this.session.commit(pending, sampled, message, { callId: this.callId(turn), temperature, stop });
      const result = await this.callAgent("step", () => env.step({ text, stop, turn }, row));
      this.take(result);
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

  /** Null when the episode's time is up. An engine that fails is asked again, wherever the router then sends. */
  private async sample(pending: PendingTurn, turn: number, room: number): Promise<GenerateResult | null> {
    for (let tries = 1; ; tries++) {
      const seconds = this.secondsLeft();
      if (seconds <= 0) return null;
      try {
        return await this.callEngine(pending, turn, room, Math.min(seconds, this.context.limits.turnSeconds));
      } catch (error) {
        if (this.signal.aborted) throw new RolloutFailure("aborted", "the run took this rollout back");
        if (this.secondsLeft() <= 0) return null;
        if (tries === engineTries) throw new RolloutFailure("engine", messageOf(error));
        await sleep(50 * 4 ** tries, undefined, { signal: this.signal }).catch(() => {});
      }
    }
  }

  private async callEngine(pending: PendingTurn, turn: number, room: number, seconds: number): Promise<GenerateResult> {
    const { router, limits, generate } = this.context;
    const heldSince = Date.now();
    let lease: EngineLease;
    try {
      lease = await router.acquire(this.task.rolloutId, limits.heldSeconds, this.signal);
    } finally {
      this.heldMs += Date.now() - heldSince;
    }
    const sentAt = Date.now();
    try {
      const request = this.request(pending, turn, room);
      const sampled = await generate(lease.url, request, { timeoutSeconds: seconds, signal: this.signal });
      if (sampled.stop === "abort") throw new Error("the engine aborted the request");
      this.session.check(sampled);
      return sampled;
    } finally {
      lease.release();
      this.modelMs += Date.now() - sentAt;
    }
  }

  private request(pending: PendingTurn, turn: number, room: number): GenerateRequest {
    const { rolloutId, sampling } = this.task;
    const { temperature, topP, topK, maxNewTokens } = sampling;
    return {
      requestId: this.callId(turn),
      tokenIds: pending.tokenIds,
      sampling: {
        temperature,
        topP,
        topK,
        maxTokens: Math.min(maxNewTokens ?? room, room),
        stopTokenIds: this.context.tokenizer.stopTokenIds,
        seed: turnSeed(this.context.seed, rolloutId, turn),
      },
    };
  }

  private take(result: StepResult): void {
    if (typeof result !== "object" || result === null) {
      throw new RolloutFailure("agent_error", `step returned ${result}; it returns { reward, done, messages? }`);
    }
    const { reward, score, info, done, messages } = result;
    for (const [name, value] of Object.entries({ reward, score: score ?? 0 })) {
      if (Number.isFinite(value)) continue;
      const shown = typeof value === "string" ? JSON.stringify(value) : String(value);
      throw new RolloutFailure("reward", `step returned the ${name} ${shown}; it must be a finite number`);
    }
    if (!done && !messages?.length) {
      throw new RolloutFailure("agent_error", "step returned neither done nor the next messages");
    }
    this.reward += reward;
    this.score = score ?? this.score;
    if (info) this.info = Object.fromEntries(Object.entries(info).filter(([, value]) => Number.isFinite(value)));
  }

  /** The user's code: its errors are data, and it cannot take longer than a turn may. */
  private async callAgent<T>(name: string, action: () => T | Promise<T>): Promise<T> {
    const { turnSeconds } = this.context.limits;
    const what = `the agent's ${name}`;
    try {
      return await withDeadline(new Promise<T>((resolve) => resolve(action())), turnSeconds, what);
    } catch (error) {
      if (error instanceof DeadlineError) throw new RolloutFailure("agent_timeout", error.message);
      const where = this.context.locate(error);
      throw new RolloutFailure("agent_error", `${where ? `${where} ` : ""}${what} failed: ${messageOf(error)}`);
    }
  }

  private callId(turn: number): string {
    return `${this.task.rolloutId}.${this.task.attempt}.${turn}`;
  }

  private secondsLeft(): number {
    const passedMs = Date.now() - this.startedAt - this.heldMs;
    return this.context.limits.rolloutSeconds - passedMs / deadlineMs(1);
  }
}

import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../deadline.ts";
import type { EngineLease, GenerateRequest, GenerateResult } from "../engines/types.ts";
import { messageOf } from "../errors.ts";
import { idsOf, type RolloutContext, RolloutFailure, type RolloutTask, takenBack } from "./rollout.ts";
import { type PendingTurn, Session, type TurnInfo } from "./trajectory.ts";
import type { ChatResult, Rollout, StopReason } from "./types.ts";
import type { WireRequest } from "./wires/types.ts";

/** What one call may ask beside the recipe's sampling; `signal`, in place of the rollout's, ends this call alone. */
export type ModelCall = Partial<Pick<WireRequest, "maxTokens" | "stop" | "seed">> & { signal?: AbortSignal };

export interface ModelReply {
  sampled: GenerateResult;
  info: TurnInfo;
}

const engineTries = 3;
/** For an agent whose calls end because the rollout's time is up. */
const graceSeconds = 5;

/** What clients see as the model. */
export const modelName = "policy";

/** The seed of one turn: the same on every rerun, another for every rollout and turn. */
export function turnSeed(seed: number, rolloutId: string, turn: number): number {
  return createHash("sha256").update(`${seed} ${rolloutId} ${turn}`).digest().readUIntBE(0, 6);
}

/** The model calls of one rollout, by an Env or the gateway: budgets, engines that fail, deadlines, seeds. */
export class ModelCalls {
  readonly session: Session;
  readonly task: RolloutTask;
  readonly context: RolloutContext;
  private readonly signal: AbortSignal;
  private readonly startedAt = Date.now();
  private calls = 0;
  private modelMs = 0;
  /** Calls that wait for an engine, since when, and how long such waits took before. */
  private held = 0;
  private heldSince = 0;
  private heldMs = 0;

  constructor(task: RolloutTask, context: RolloutContext, signal: AbortSignal) {
    this.task = task;
    this.context = context;
    this.signal = signal;
    this.session = new Session(context.tokenizer);
  }

  /** Tokens that a reply may have; below 1 the prompt fills the context. */
  room({ tokenIds }: PendingTurn): number {
    return this.context.limits.maxLen - tokenIds.length;
  }

  /** Null when the rollout's time is up. An engine that fails is asked again, wherever the router then sends. */
  async sample(pending: PendingTurn, call: ModelCall = {}): Promise<ModelReply | null> {
    const request = this.request(pending, call);
    const signal = call.signal ?? this.signal;
    for (let tries = 1; ; tries++) {
      const seconds = this.secondsLeft();
      if (seconds <= 0) return null;
      try {
        const sampled = await this.callEngine(request, Math.min(seconds, this.context.limits.turnSeconds), signal);
        // Cut by the context's end, not by the turn's own limit.
        const isFull = sampled.stop === "length" && sampled.tokenIds.length >= this.room(pending);
        const { temperature } = this.task.sampling;
        return { sampled, info: { callId: request.requestId, temperature, stop: isFull ? "context" : sampled.stop } };
      } catch (error) {
        if (signal.aborted) throw takenBack();
        if (this.secondsLeft() <= 0) return null;
        if (tries === engineTries) throw new RolloutFailure("engine", messageOf(error));
        await sleep(50 * 4 ** tries, undefined, { signal }).catch(() => {});
      }
    }
  }

  secondsLeft(): number {
    const heldMs = this.heldMs + (this.held > 0 ? Date.now() - this.heldSince : 0);
    return this.context.limits.rolloutSeconds - (Date.now() - this.startedAt - heldMs) / deadlineMs(1);
  }

  /** Rejects some time after the rollout's time is up: its calls have then ended, and so should its agent. */
  async late(signal: AbortSignal): Promise<never> {
    for (let left = 1; left > 0; left = this.secondsLeft() + graceSeconds) {
      await sleep(deadlineMs(left), undefined, { signal });
    }
    const { rolloutSeconds } = this.context.limits;
    throw new RolloutFailure("agent_timeout", `the agent did not end within rollout.timeout, ${rolloutSeconds} s`);
  }

  toRollout({ reward, score = reward, info = {} }: ChatResult, stop: StopReason): Rollout {
    return {
      ...idsOf(this.task, this.context.runId),
      segments: this.session.toSegments(),
      reward,
      score,
      info,
      stop,
      timings: {
        startedAt: this.startedAt / 1000,
        seconds: (Date.now() - this.startedAt) / 1000,
        modelSeconds: this.modelMs / 1000,
      },
    };
  }

  private async callEngine(request: GenerateRequest, seconds: number, signal: AbortSignal): Promise<GenerateResult> {
    const lease = await this.lease(signal);
    const sentAt = Date.now();
    try {
      const options = { timeoutSeconds: seconds, signal };
      const sampled = await this.context.generate(lease.url, request, options);
      if (sampled.stop === "abort") throw new Error("the engine aborted the request");
      this.session.check(sampled);
      return sampled;
    } finally {
      lease.release();
      this.modelMs += Date.now() - sentAt;
    }
  }

  /** A weight sync holds all calls of a rollout at once: such a time counts once. */
  private async lease(signal: AbortSignal): Promise<EngineLease> {
    if (this.held++ === 0) this.heldSince = Date.now();
    try {
      return await this.context.router.acquire(this.task.rolloutId, this.context.limits.heldSeconds, signal);
    } finally {
      if (--this.held === 0) this.heldMs += Date.now() - this.heldSince;
    }
  }

  private request(pending: PendingTurn, { maxTokens, stop, seed }: ModelCall): GenerateRequest {
    const { rolloutId, attempt, sampling } = this.task;
    const { temperature, topP, topK, maxNewTokens } = sampling;
    const number = this.calls++;
    const room = this.room(pending);
    return {
      requestId: `${rolloutId}.${attempt}.${number}`,
      tokenIds: pending.tokenIds,
      sampling: {
        temperature,
        topP,
        topK,
        maxTokens: Math.min(maxNewTokens ?? room, maxTokens ?? room, room),
        stopTokenIds: this.context.tokenizer.stopTokenIds,
        seed: turnSeed(seed ?? this.context.seed, rolloutId, number),
        ...(stop?.length && { stop }),
      },
    };
  }
}

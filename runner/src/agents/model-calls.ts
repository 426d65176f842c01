import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../deadline.ts";
import { keepPartial } from "../engines/client.ts";
import { ChoiceText } from "../engines/embedded/choice-text.ts";
import { joinRoutes } from "../engines/routes.ts";
import type { EngineLease, GenerateRequest, GenerateResult, SamplingParams } from "../engines/types.ts";
import { messageOf } from "../errors.ts";
import { idsOf, type RolloutContext, RolloutFailure, type RolloutTask, takenBack } from "./rollout.ts";
import { type PendingTurn, Session, type TurnInfo } from "./trajectory.ts";
import type { ChatResult, Rollout, StopReason } from "./types.ts";
import type { WireRequest } from "./wires/types.ts";

/** What one call may ask beside the recipe's sampling; `signal`, in place of the rollout's, ends this call alone. */
export type ModelCall = Partial<Pick<WireRequest, "maxTokens" | "stop" | "stopTokenIds" | "seed">> & {
  signal?: AbortSignal;
};

export interface ModelReply {
  sampled: GenerateResult;
  info: TurnInfo;
}

type RequestBody = Omit<GenerateRequest, "version">;

const engineTries = 3;
/** Before an engine is asked again that ended a request without a token. */
const idleMs = 50;
/** For an agent whose calls end because the rollout's time is up. */
const graceSeconds = 5;

/** What clients see as the model. */
export const modelName = "policy";

/** Of run, rollout and turn (then of that and a position): the same on every rerun, another for every other. */
export function turnSeed(...parts: (number | string)[]): number {
  return createHash("sha256").update(parts.join(" ")).digest().readUIntBE(0, 6);
}

/** The model calls of one rollout, by an Env or the gateway: budgets, engines that fail, deadlines, seeds. */
export class ModelCalls {
  readonly session: Session;
  private readonly startedAt = Date.now();
  private calls = 0;
  private modelMs = 0;
  /** Calls that wait for an engine, since when, and how long such waits took before. */
  private held = 0;
  private heldSince = 0;
  private heldMs = 0;

  constructor(
    readonly task: RolloutTask,
    readonly context: RolloutContext,
    private readonly signal: AbortSignal,
  ) {
    this.session = new Session(context.tokenizer);
  }

  /** Tokens that a reply may have; below 1 the prompt fills the context. */
  room({ tokenIds }: PendingTurn): number {
    return this.context.limits.maxLen - tokenIds.length;
  }

  /**
   * Null when the rollout's time is up. An engine that fails is asked again, wherever the router then sends. What a
   * weight sync aborts goes on from its tokens; what `keepPartial` aborts is the reply, if it has any.
   */
  async sample(pending: PendingTurn, call: ModelCall = {}): Promise<ModelReply | null> {
    const request = this.request(pending, call);
    const signal = call.signal ?? this.signal;
    let sampled: GenerateResult = { tokenIds: [], logprobs: [], versions: [], stop: "abort" };
    for (let tries = 0; sampled.stop === "abort" && !signal.aborted; ) {
      const seconds = this.secondsLeft();
      if (seconds <= 0) return null;
      try {
        const rest = restOf(request, sampled.tokenIds);
        const part = await this.callEngine(rest, Math.min(seconds, this.context.limits.turnSeconds), signal);
        if (part.tokenIds.length === 0) await sleep(idleMs);
        sampled = await this.join(sampled, part, request.sampling);
      } catch (error) {
        if (signal.aborted) break;
        if (this.secondsLeft() <= 0) return null;
        if (++tries === engineTries) throw new RolloutFailure("engine", messageOf(error));
        await sleep(50 * 4 ** tries, undefined, { signal }).catch(() => {});
      }
    }
    const isReply = signal.reason === keepPartial && sampled.tokenIds.length > 0;
    if (sampled.stop === "abort" && !isReply) throw takenBack();
    // Cut by the context's end, not by the turn's own limit.
    const isFull = sampled.stop === "length" && sampled.tokenIds.length >= this.room(pending);
    const { temperature } = this.task.sampling;
    const { cut } = sampled;
    const { source } = this.context;
    const stop: StopReason = isFull ? "context" : sampled.stop;
    const info = { callId: request.requestId, temperature, stop, ...(source && { source }), ...(cut && { cut }) };
    return { sampled, info };
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

  private async callEngine(request: RequestBody, seconds: number, signal: AbortSignal): Promise<GenerateResult> {
    const lease = await this.lease(signal);
    const sentAt = Date.now();
    let isData = false;
    try {
      const options = { timeoutSeconds: seconds, signal };
      const { url, version, synced, replica } = lease;
      const sampled = await this.context.generate(url, { ...request, version, synced, replica }, options);
      // Without one it was aborted while it waited.
      if (sampled.stop !== "abort" || sampled.tokenIds.length > 0) this.session.check(sampled);
      isData = true;
      return sampled;
    } finally {
      lease.release(!isData && !signal.aborted);
      this.modelMs += Date.now() - sentAt;
    }
  }

  /**
   * The engine that went on could not see a stop string that begins before the seam: what it said after that is cut,
   * and counted. One that was aborted may not have looked at its last token.
   */
  private async join(
    kept: GenerateResult,
    part: GenerateResult,
    { stop = [], stopTokenIds, maxTokens }: SamplingParams,
  ): Promise<GenerateResult> {
    const upTo = (end?: number) => ({
      tokenIds: [...kept.tokenIds, ...part.tokenIds].slice(0, end),
      logprobs: [...kept.logprobs, ...part.logprobs].slice(0, end),
      versions: [...kept.versions, ...part.versions].slice(0, end),
    });
    const routes = joinRoutes(kept.routes, part.routes);
    const whole = { ...part, ...upTo(), ...(routes && { routes }) };
    const { length } = whole.tokenIds;
    if (part.stop === "abort" && length >= maxTokens) whole.stop = "length";
    if (stop.length === 0 || (kept.tokenIds.length === 0 && part.stop !== "abort")) return whole;
    const options = { stop, includeStop: true, skipSpecial: false, tokenTexts: false };
    const text = new ChoiceText(this.context.tokenizer, { ...options, stopTokenIds: new Set(stopTokenIds) });
    for (const [index, id] of whole.tokenIds.entries()) {
      await text.push(id);
      const { stopString } = text;
      if (stopString !== null) {
        const cut = length - index - 1;
        return { ...whole, ...upTo(index + 1), stop: "stop", stopString, cut };
      }
    }
    return whole;
  }

  /** A weight sync holds all calls of a rollout at once: such a time counts once. */
  private async lease(signal: AbortSignal): Promise<EngineLease> {
    if (this.held++ === 0) this.heldSince = Date.now();
    try {
      const { rolloutId, pool } = this.task;
      return await this.context.router.acquire(rolloutId, this.context.limits.heldSeconds, signal, pool);
    } finally {
      if (--this.held === 0) this.heldMs += Date.now() - this.heldSince;
    }
  }

  private request(pending: PendingTurn, { maxTokens, stop, stopTokenIds = [], seed }: ModelCall): RequestBody {
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
        stopTokenIds: [...this.context.tokenizer.stopTokenIds, ...stopTokenIds],
        seed: turnSeed(seed ?? this.context.seed, rolloutId, number),
        ...(stop?.length && { stop }),
      },
    };
  }
}

/** What is still to be sampled after the tokens that were kept. */
function restOf(request: RequestBody, kept: number[]): RequestBody {
  if (kept.length === 0) return request;
  const { tokenIds, sampling } = request;
  const maxTokens = sampling.maxTokens - kept.length;
  const seed = turnSeed(sampling.seed, kept.length);
  return { ...request, tokenIds: [...tokenIds, ...kept], sampling: { ...sampling, maxTokens, seed } };
}

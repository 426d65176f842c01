import type { FailureReason } from "./failures.ts";

/** Why a turn or rollout ended; set by the engine or the loop, never guessed. */
export type StopReason = "stop" | "length" | "context" | "max_turns" | "env_done" | "timeout" | "infra" | "abort";

/** Values of `Segment.mask`. */
export const Mask = { context: 0, trained: 1, sharedPrefix: 2, rejected: 3, stale: 4, truncated: 5 } as const;

/** One model call inside a segment: `start..end` are the sampled tokens. */
export interface Turn {
  start: number;
  end: number;
  callId: string;
  stop: StopReason;
  temperature: number;
  /** Where in the agent's source the call was made, `file:line`. */
  source?: string;
  /** What an Env's step gave for it, part of the rollout's. */
  reward?: number;
  /** Tokens sampled after its stop string, which a weight sync's seam hid from the engine. They are in no row. */
  cut?: number;
}

/**
 * A token sequence as the policy saw and made it. All arrays have one length. `logprobs` are the behaviour policy's,
 * after temperature, over the full vocabulary; NaN where not sampled. `versions` are -1 where not sampled.
 */
export interface Segment {
  tokens: Int32Array;
  mask: Uint8Array;
  logprobs: Float32Array;
  versions: Int32Array;
  turns: Turn[];
  /**
   * Of a mixture, where the engine records them: `[tokens, layers x experts a token]` ids of the experts that each
   * position went through when the next was sampled; -1 where nobody knows.
   */
  routes?: Int16Array;
}

export interface RolloutIds {
  runId: string;
  promptId: string;
  groupId: string;
  rolloutId: string;
  attempt: number;
}

/** One episode of an agent on a dataset row. */
export interface Rollout extends RolloutIds {
  segments: Segment[];
  reward: number;
  /** What eval reports; the reward unless the agent says otherwise. */
  score: number;
  /** Numeric entries become metrics. */
  info: Record<string, number>;
  stop: StopReason;
  timings: { startedAt: number; seconds: number; modelSeconds: number };
}

/** A rollout that the policy did not cause to fail (engine, network, grader crash): counted by reason, never scored. */
export interface FailedRollout extends RolloutIds {
  reason: FailureReason;
  message: string;
}

/** The rollouts of one dataset row: what baselines are taken over. */
export interface Group {
  groupId: string;
  promptId: string;
  /** Of the pass over the data that the prompt was handed out for. */
  epoch: number;
  /** Policy version of the engines when the group was admitted. */
  admittedVersion: number;
  attempt: number;
  rollouts: Rollout[];
  failed: FailedRollout[];
}

export interface ToolCall {
  id?: string;
  type?: "function";
  function: { name: string; arguments: string | Record<string, unknown> };
}

/** A chat message, in OpenAI's form. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string | null;
  /** What the policy thought, apart from what it said: templates decide whether to show it again. */
  reasoning_content?: string | null;
  name?: string;
  tool_call_id?: string;
  tool_calls?: ToolCall[];
}

/** A dataset row as an agent gets it: the whole JSON object beside the parts that the recipe's keys name. */
export interface Row {
  id: string;
  /** The conversation so far: a string in the dataset becomes one user message. */
  messages: Message[];
  /** Whatever `data.label_key` names; undefined without it. */
  label: unknown;
  fields: Record<string, unknown>;
}

export interface ResetResult {
  /** Replaces the row's messages when given. */
  messages?: Message[];
  /** For the chat template, which tells the policy of them: a `Tool`'s `schema`, or any in OpenAI's form. */
  tools?: object[];
}

export interface Action {
  /** The assistant's text of this turn, without its end-of-turn token. */
  text: string;
  stop: StopReason;
  /** Counts from 0. */
  turn: number;
}

/** Rewards add up; the last score and the last info hold. */
export interface StepResult extends ChatResult {
  done: boolean;
  /** Next messages (tool or user), empty when done. */
  messages?: Message[];
}

/**
 * What a user writes: one instance an episode. `export default class extends Env` in the file that `train.agent_path`
 * names.
 */
export abstract class Env {
  reset(_row: Row): ResetResult | Promise<ResetResult> {
    return {};
  }
  abstract step(action: Action, row: Row): StepResult | Promise<StepResult>;
  close(): void | Promise<void> {}
}

/** What an agent gets that brings its own client. */
export interface ChatContext {
  row: Row;
  /** `http://127.0.0.1:PORT/s/SESSION/v1`, for OpenAI's clients and Anthropic's alike. */
  baseUrl: string;
  /** Clients want one; any is taken. */
  apiKey: string;
  /** The name to give as `model`; any is taken. */
  model: string;
  /** Aborts when nobody waits for the agent any more: the rollout is over, or the run takes it back. */
  signal: AbortSignal;
}

export interface ChatResult {
  reward: number;
  /** What eval reports; the reward without. */
  score?: number;
  /** Numeric entries become metrics. */
  info?: Record<string, number>;
}

/**
 * What a user writes around a client of their own: one instance an episode. `export default class extends ChatAgent`
 * in the file that `train.agent_path` names. What it samples through `context.baseUrl` is trained.
 */
export abstract class ChatAgent {
  abstract run(context: ChatContext): ChatResult | Promise<ChatResult>;
}

/** `replies`: what the policy said, one text a model call, as it was sampled. */
export type GradedRollout = Rollout & { row: Row; replies: string[] };

/**
 * Says what a rollout is worth; `text` is the last reply, `label` the row's. The rollouts of an agent's file that
 * exports one as `grade` are graded by it, in training and by `molt-runner rescore`.
 */
export type Grader = (
  text: string,
  label: unknown,
  rollout: GradedRollout,
) => number | ChatResult | Promise<number | ChatResult>;

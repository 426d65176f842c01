import type { Tokenizer } from "../data/tokenizer.ts";
import type { CallOptions } from "../engines/client.ts";
import type { EnginePool } from "../engines/router.ts";
import type { GenerateRequest, GenerateResult, Router, SamplingParams } from "../engines/types.ts";
import { messageOf } from "../errors.ts";
import type { FailureReason } from "./failures.ts";
import type { ChatResult, FailedRollout, Rollout, RolloutIds, Row } from "./types.ts";

export interface RolloutSampling extends Pick<SamplingParams, "temperature" | "topP" | "topK"> {
  /** Of one turn; null: what remains of `maxLen`. */
  maxNewTokens: number | null;
}

export interface RolloutTask extends Pick<RolloutIds, "groupId" | "rolloutId" | "attempt"> {
  row: Row;
  sampling: RolloutSampling;
  /** Whose engines sample; without, those that train. */
  pool?: EnginePool;
}

export interface RolloutLimits {
  /** Longest segment, prompt and replies together, in tokens. */
  maxLen: number;
  /** Of an Env's episode. */
  maxTurns: number;
  /** Of an agent that brings its own client. */
  maxRequests: number;
  /** Of one episode; waits for a weight sync do not count. */
  rolloutSeconds: number;
  /** Of one model call. */
  turnSeconds: number;
  /** Of one call of an Env's own functions. */
  toolSeconds: number;
  /** Of the grader: what a file exports as `grade`, or a command. */
  rewardSeconds: number;
  /** Of one weight sync, for which model calls wait. */
  heldSeconds: number;
}

/** What all rollouts of a run share. */
export interface RunSettings {
  runId: string;
  /** `run.seed`: turns are sampled with seeds made from it. */
  seed: number;
  limits: RolloutLimits;
  tokenizerFolder: string;
  chatTemplate?: string | null;
  eosTokenIds: number[];
}

export interface RolloutContext extends Pick<RunSettings, "runId" | "seed" | "limits"> {
  tokenizer: Tokenizer;
  router: Router;
  generate(url: string, request: GenerateRequest, options: CallOptions): Promise<GenerateResult>;
  /** Names the agent's source line that an error comes from. */
  locate(error: unknown): string | undefined;
  /** Where the agent's code is that a reply goes to, `file:line`. */
  source?: string;
}

export class RolloutFailure extends Error {
  /** By which a bundled agent's copy of this class is known, too. */
  override readonly name = "RolloutFailure";
  readonly reason: FailureReason;
  constructor(reason: FailureReason, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** Says something to whoever watches the run: once a kind. */
export type Warn = (kind: string, text: string) => void;

export function takenBack(): RolloutFailure {
  return new RolloutFailure("aborted", "the run took this rollout back");
}

/** Whatever goes wrong comes back as data. */
export async function settle(
  task: RolloutTask,
  runId: string,
  run: () => Promise<Rollout | FailedRollout>,
): Promise<Rollout | FailedRollout> {
  try {
    return await run();
  } catch (error) {
    const reason = error instanceof RolloutFailure ? error.reason : "agent_error";
    return { ...idsOf(task, runId), reason, message: messageOf(error) };
  }
}

export function idsOf({ row, groupId, rolloutId, attempt }: RolloutTask, runId: string): RolloutIds {
  return { runId, promptId: row.id, groupId, rolloutId, attempt };
}

/** What the user's code threw, with its line; a failure of what it called here keeps its own reason. */
export function agentError(
  what: string,
  error: unknown,
  locate: RolloutContext["locate"],
  reason: FailureReason = "agent_error",
): RolloutFailure {
  if (error instanceof Error && error.name === "RolloutFailure") {
    return new RolloutFailure((error as RolloutFailure).reason, error.message);
  }
  const where = locate(error);
  return new RolloutFailure(reason, `${where ? `${where} ` : ""}${what} failed: ${messageOf(error)}`);
}

/** The numbers that an agent gave; `what` gave them. Only numeric `info` is kept; null is nothing, as JSON says it. */
export function readResult<T extends ChatResult>(result: T, what: string, shape: string): T {
  if (typeof result !== "object" || result === null) {
    throw new RolloutFailure("agent_error", `${what} returned ${result}; it returns ${shape}`);
  }
  const { reward, info } = result;
  const score = result.score ?? undefined;
  for (const [name, value] of Object.entries({ reward, score: score ?? 0 })) {
    if (Number.isFinite(value)) continue;
    const shown = typeof value === "string" ? JSON.stringify(value) : String(value);
    throw new RolloutFailure("reward", `${what} returned the ${name} ${shown}; it must be a finite number`);
  }
  const numbers = Object.entries(info ?? {}).filter(([, value]) => Number.isFinite(value));
  return { ...result, score, info: Object.fromEntries(numbers) };
}

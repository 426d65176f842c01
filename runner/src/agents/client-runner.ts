import { failure } from "../deferred.ts";
import type { Gateway } from "./gateway.ts";
import type { GatewaySession } from "./gateway-session.ts";
import { ModelCalls, modelName } from "./model-calls.ts";
import {
  agentError,
  type RolloutContext,
  RolloutFailure,
  type RolloutTask,
  readResult,
  settle,
  takenBack,
} from "./rollout.ts";
import type { ChatContext, ChatResult, FailedRollout, Rollout } from "./types.ts";

/** An agent with a client of its own: a `ChatAgent`'s `run`, or a command. */
export type ClientAgent = (context: ChatContext) => ChatResult | Promise<ChatResult>;

/** Whatever goes wrong comes back as data; only `signal` ends it early. */
export function runClientRollout(
  agent: ClientAgent,
  gateway: Gateway,
  task: RolloutTask,
  context: RolloutContext,
  signal: AbortSignal,
): Promise<Rollout | FailedRollout> {
  return settle(task, context.runId, async () => {
    if (signal.aborted) throw takenBack();
    const { session, baseUrl } = gateway.open(new ModelCalls(task, context, signal));
    const told = new AbortController();
    try {
      const chat = { row: task.row, baseUrl, apiKey: session.id, model: modelName, signal: told.signal };
      const run = new Promise<ChatResult>((resolve) => resolve(agent(chat)));
      const result = await ended(run, session, signal);
      await session.endCalls();
      return rolloutOf(session, result);
    } finally {
      told.abort();
      gateway.close(session);
    }
  });
}

/** What the agent returned. One that took the end of its room, requests or time for an error has earned nothing. */
async function ended(run: Promise<ChatResult>, session: GatewaySession, signal: AbortSignal): Promise<ChatResult> {
  const { calls } = session;
  const taken = failure();
  signal.addEventListener("abort", () => taken.reject(takenBack()), { once: true });
  const done = new AbortController();
  try {
    const result = await Promise.race([run, taken.promise, calls.late(done.signal)]);
    return readResult(result, "run", "{ reward, score?, info? }");
  } catch (error) {
    if (error instanceof RolloutFailure) throw error;
    if (session.stop !== null && calls.session.turns.length > 0) return { reward: 0 };
    throw session.failure ?? agentError("the agent's run", error, calls.context.locate);
  } finally {
    done.abort();
  }
}

function rolloutOf(session: GatewaySession, result: ChatResult): Rollout {
  const { calls, failure, stop, unreadCalls } = session;
  if (failure) throw failure;
  if (calls.session.turns.length === 0) {
    if (stop === "context") throw new RolloutFailure("context", "the first prompt fills all of data.max_len");
    throw new RolloutFailure("agent_error", "the agent ended without a model call: point its client at the base URL");
  }
  // Case A7.
  const info = { ...result.info, ...(unreadCalls !== null && { unread_calls: unreadCalls }) };
  return calls.toRollout({ ...result, info }, stop ?? "env_done");
}

/**
 * Why a rollout or its group counts for nothing: all that the policy cannot cause, never scored and counted by reason.
 * What it can cause (a bad call, a reply without end, its own time) is an outcome, with a `StopReason`. `again`: the
 * prompt goes back, `rollout.max_attempts` times in all; `final`: it would fail again.
 */
export const failures = {
  /** No engine answered with data, however often asked. */
  engine: "again",
  /** No reply within `rollout.timeout`, before the policy had said anything. */
  timeout: "again",
  /** The thread that ran the agent died. */
  worker: "again",
  /** The agent's code threw, or returned what it may not. */
  agent_error: "again",
  agent_timeout: "again",
  /** No finite number came of the reward function or the grader. */
  reward: "again",
  grader_timeout: "again",
  /** Its group was not finished at its deadline. */
  stale: "again",
  /** Fewer rollouts are sampled than `rollout.min_group` asks for. */
  min_group: "again",
  /** The run took it back. */
  aborted: "again",
  /** The prompt alone fills `data.max_len`. */
  context: "final",
} as const satisfies Record<string, "again" | "final">;

export type FailureReason = keyof typeof failures;

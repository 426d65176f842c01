/** Everything a run says about itself, one JSON object a line in `events.ndjson`. `time` is seconds since the epoch. */
export const eventVersion = 1;

export type RunEvent =
  | { type: "started"; version: number; runId: string; recipe: string; command: string; totalSteps: number | null }
  | { type: "resumed"; fromStep: number; totalSteps: number | null }
  | { type: "phase"; name: string; state: "begin" | "end"; seconds?: number; detail?: string }
  | { type: "arithmetic"; line: string }
  /** What became of a group, once: `step` is the step that consumed it; a dropped one goes back when `requeued`. */
  | {
      type: "group";
      groupId: string;
      promptId: string;
      epoch: number;
      attempt: number;
      outcome: "trained" | "dropped";
      reason?: string;
      requeued?: boolean;
      step: number;
      reward?: number;
    }
  | {
      type: "rollout_failed";
      promptId: string;
      groupId: string;
      rolloutId: string;
      attempt: number;
      reason: string;
      message: string;
    }
  | { type: "step"; step: number; policyVersion: number; metrics: Record<string, number> }
  /** One rollout of a step as text, special tokens included; long texts are cut. What it says is not to be trusted. */
  | { type: "sample"; step: number; rolloutId: string; reward: number; prompt: string; reply: string }
  | { type: "step_skipped"; step: number; reason: "no_trainable_tokens" | "non_finite_gradient"; detail: string }
  | { type: "sync"; policyVersion: number; seconds: number; checksum: string; engines: number }
  | { type: "eval"; step: number; policyVersion: number; metrics: Record<string, number> }
  | { type: "checkpoint"; step: number; directory: string; seconds: number }
  | { type: "warning"; message: string }
  | { type: "failed"; message: string }
  | { type: "ended"; state: "completed" | "failed" | "interrupted" };

export type TimedEvent = RunEvent & { time: number };

import type { Group, Rollout } from "../src/agents/types.ts";

/** A rollout of `turns` turns that sample half of its `tokens` tokens each. */
export function rolloutOf(groupId: string, member: number, tokens: number, turns: number, version = 0): Rollout {
  const length = Math.floor(tokens / turns);
  const mask = Uint8Array.from({ length: length * turns }, (_, at) => Number(at % length >= length >> 1));
  const segment = {
    tokens: new Int32Array(mask.length).fill(7),
    mask,
    logprobs: Float32Array.from(mask, (value) => (value ? -0.5 : Number.NaN)),
    versions: Int32Array.from(mask, (value) => (value ? version : -1)),
    turns: Array.from({ length: turns }, (_, turn) => ({
      ...{ start: turn * length + (length >> 1), end: (turn + 1) * length },
      ...{ callId: `${groupId}/${member}.${turn}`, stop: "stop" as const, temperature: 1 },
    })),
  };
  const promptId = groupId.slice(0, groupId.indexOf("@"));
  const ids = { runId: "bench", promptId, groupId, rolloutId: `${groupId}/${member}`, attempt: 0 };
  const scores = { reward: member % 2, score: member % 2, info: {}, stop: "env_done" as const };
  return { ...ids, segments: [segment], ...scores, timings: { startedAt: 0, seconds: 2, modelSeconds: 1 } };
}

export function groupOf(groupId: string, size: number, tokens: number, turns: number): Group {
  const rollouts = Array.from({ length: size }, (_, member) => rolloutOf(groupId, member, tokens, turns));
  const { promptId } = rollouts[0]!;
  return { groupId, promptId, epoch: 0, admittedVersion: 0, attempt: 0, rollouts, failed: [] };
}

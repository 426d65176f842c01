/** `reward.clip_range`, both ends included. */
export function clipReward(reward: number, [low, high]: readonly [number, number]): number {
  return Math.min(Math.max(reward, low), high);
}

/** Soft overlong punishment (DAPO, arXiv 2503.14476): `factor` lost over the last `buffer` tokens before a limit. */
export function overlongPenalty(roomLeft: number, buffer: number, factor: number): number {
  return buffer > 0 ? factor * Math.min(Math.max(1 - roomLeft / buffer, 0), 1) : 0;
}

/** `reward.clip_range`, both ends included. */
export function clipReward(reward: number, [low, high]: readonly [number, number]): number {
  return Math.min(Math.max(reward, low), high);
}

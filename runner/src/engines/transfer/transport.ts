import { messageOf, RunnerError } from "../../errors.ts";
import type { RankGroup } from "../../trainer/handle.ts";
import type { CallOptions } from "../client.ts";
import type { Engine } from "../fleet.ts";

/** Rank 0 speaks to the engines, the others take part in gathering. */
export type SyncRanks = Pick<RankGroup, "all" | "node">;

/** One attempt to bring engines to a version. */
export interface Delivery {
  engines: Engine[];
  version: number;
  /** Of each call: what is left of the attempt's deadline. */
  call(): CallOptions;
}

/** How weights come to engines. One is made for a run, and makes one delivery at a time. */
export interface Transport {
  /** While engines that do not say so themselves have part of the new weights. */
  readonly tears?: boolean;
  /** To engines that are paused: each has the version, and says so. Resolves with the weights' checksum. */
  send(delivery: Delivery): Promise<string>;
  /** Where `send` cannot: rejects unless engines that have resumed, and serve nobody yet, sample with what was sent. */
  verify?(delivery: Delivery): Promise<void>;
  /** After a failure: whatever stands between trainer and engines comes down. */
  abandon?(): Promise<void>;
  /** Once all are at a version: what was laid out for it goes. */
  settle?(): Promise<void>;
}

/** Waits for all, so that nothing of a failed attempt goes on; rejects with every reason. */
export async function allOf<T>(work: Promise<T>[]): Promise<T[]> {
  const settled = await Promise.allSettled(work);
  const failures = settled.flatMap((result) => (result.status === "rejected" ? [messageOf(result.reason)] : []));
  if (failures.length > 0) throw new RunnerError(failures.join("; "));
  return settled.map((result) => (result as PromiseFulfilledResult<T>).value);
}

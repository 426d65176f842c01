import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { UnitDescription } from "molt-native";
import { parametersOf } from "../data/decoder.ts";
import { deadlineMs, withDeadline } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { indented } from "../lists.ts";
import type { RankGroup } from "../trainer/handle.ts";
import { abortEveryMs, type CallOptions, type EngineClient, type UpdateInfo } from "./client.ts";
import type { Engine, EngineFleet } from "./fleet.ts";
import { type EnginePool, everyPool } from "./router.ts";

export type SyncTarget = Pick<EngineFleet, "router" | "client" | "transfer" | "drop" | "ready">;

/** Rank 0 speaks to the engines, the others take part in gathering. */
export type SyncRanks = Pick<RankGroup, "all" | "node">;

/** For one membership, thrown away at any change of it and after any failure. */
export interface TransferGroup {
  /** Their addresses: an engine that was started again is another member. */
  engines: string[];
}

export interface SyncOptions {
  fleet: SyncTarget;
  ranks: SyncRanks;
  units: UnitDescription[];
  version: number;
  /** Whose engines are synced; without, all. */
  pools?: readonly EnginePool[];
  /**
   * `train.partial_rollout`: what becomes of running requests while new ones are held. `wait` lets them end, `resume`
   * aborts them and whoever asked goes on from their tokens, `keep` freezes them and their key/value cache.
   */
  inFlight: "resume" | "wait" | "keep";
  /** For running requests to end. */
  drainSeconds: number;
  /** For one attempt; a sync makes one, then at most one an engine. */
  deadlineSeconds: number;
  log: (line: string) => void;
}

export interface SyncResult {
  checksum: string;
  engines: number;
  seconds: number;
}

/** For calls that move no weights. */
const controlSeconds = 30;
/** An engine that is silent must not keep the others waiting. */
const abortSeconds = 5;

/**
 * Brings every engine to `version`, verified by checksum, once running requests have drained. When an attempt with all
 * engines fails, each is tried once more by itself, and a faulty one dropped; when all were, those that are started
 * again. Rejects when none is left. No engine that still serves is left paused or at another version.
 */
export async function syncWeights(options: SyncOptions): Promise<SyncResult> {
  const { inFlight, version, pools = everyPool } = options;
  const { router } = options.fleet;
  const started = performance.now();
  router.hold(pools);
  try {
    if (inFlight !== "keep") await drain(options);
    const checksum = await bringAll(options);
    for (const pool of pools) router.version[pool] = inFlight === "keep" ? null : version;
    return { checksum, engines: router.alive(pools).length, seconds: (performance.now() - started) / 1000 };
  } finally {
    router.release(pools);
  }
}

/** `resume` asks again and again: a request may hold a lease and have yet to arrive. */
async function drain({ fleet: { router, client }, inFlight, pools, drainSeconds }: SyncOptions): Promise<void> {
  let isWaiting = true;
  const drained = router.drained(drainSeconds, pools).finally(() => {
    isWaiting = false;
  });
  const abortAll = async ({ url }: Pick<Engine, "url">) => {
    while (isWaiting) {
      // An engine that fails here fails its attempt too.
      await client.abortRequests(url, null, { timeoutSeconds: abortSeconds }).catch(() => {});
      await Promise.race([drained, sleep(abortEveryMs)]);
    }
  };
  await Promise.all([drained, ...(inFlight === "resume" ? router.alive(pools).map(abortAll) : [])]);
}

async function bringAll(options: SyncOptions): Promise<string> {
  const { fleet, pools, version, log } = options;
  await fleet.ready(pools);
  const engines = fleet.router.alive(pools);
  try {
    const checksum = await attempt(options, engines).catch((error) => {
      log(`weight sync to version ${version} failed, trying each engine by itself: ${messageOf(error)}`);
      return tryEach(options, engines);
    });
    for (const engine of engines) fleet.router.admit(engine);
    return checksum;
  } catch (error) {
    await fleet.ready(pools);
    if (fleet.router.alive(pools).length === 0) throw error;
    return bringAll(options);
  }
}

/** An engine that was started again, while the others go on: it serves once it has their version. */
export async function joinEngine(options: SyncOptions, engine: Engine): Promise<void> {
  const checksum = await tryEach(options, [engine]).catch(() => null);
  if (checksum !== null) options.fleet.router.admit(engine, options.version);
}

async function tryEach(options: SyncOptions, engines: Engine[]): Promise<string> {
  const { fleet, version } = options;
  const failures: string[] = [];
  let checksum: string | null = null;
  for (const engine of engines) {
    try {
      checksum = await attempt(options, [engine]);
    } catch (error) {
      const reason = `weight sync to version ${version} failed: ${messageOf(error)}`;
      failures.push(`engine ${engine.engine} (${engine.url}): ${messageOf(error)}`);
      // Not one that has died and been started again meanwhile.
      if (fleet.router.alive().some(({ url }) => url === engine.url)) await fleet.drop(engine.engine, reason);
    }
  }
  if (checksum !== null) return checksum;
  throw new RunnerError(`weight sync to version ${version} failed on every engine:${indented(failures)}`);
}

/** All or nothing. Whatever happens, engines are told to resume and the trainer is idle. */
async function attempt(options: SyncOptions, engines: Engine[]): Promise<string> {
  const { fleet, ranks, version, inFlight, deadlineSeconds } = options;
  const { client } = fleet;
  const keeps = inFlight === "keep";
  const end = performance.now() + deadlineMs(deadlineSeconds);
  const secondsLeft = () => Number(((end - performance.now()) / deadlineMs(1)).toFixed(2));
  const call = (): CallOptions => ({ timeoutSeconds: Math.max(secondsLeft(), 0.01) });
  const control = (): CallOptions => ({ timeoutSeconds: Math.min(call().timeoutSeconds, controlSeconds) });
  const onAll = <T>(body: (engine: Engine, index: number) => Promise<T>) => allOf(engines.map(body));
  try {
    await onAll(({ url }) => client.pause(url, keeps ? "keep" : "abort", !keeps, control()));
    await ensureGroup(options, engines, call);
    await onAll(({ url }) => client.startWeightUpdate(url, control()));
    const update = describeUpdate(options.units);
    const receiving = engines.map(({ url }) => client.updateWeights(url, update, call()));
    const broadcast = ranks.all("broadcastWeights", {});
    const sending = withDeadline(broadcast, call().timeoutSeconds, "the trainer to send its weights");
    await allOf<unknown>([sending, ...receiving]);
    const { checksum } = (await sending)[0]!;
    await onAll((engine) => finish(client, engine, version, checksum, call()));
    await onAll(({ url }) => client.resume(url, control()));
    return checksum;
  } catch (error) {
    await abandon(options, engines);
    throw error;
  }
}

/** Gloo's deadline is half an attempt's, so that its reason arrives first. */
async function ensureGroup(options: SyncOptions, engines: Engine[], call: () => CallOptions): Promise<void> {
  const { fleet, ranks, deadlineSeconds } = options;
  const { address: host } = ranks.node;
  const urls = engines.map(({ url }) => url);
  if (String(fleet.transfer?.engines) === String(urls)) return;
  await disconnect(options);
  const port = await ranks.node.freePort();
  const prefix = `transfer-${randomBytes(4).toString("hex")}`;
  const worldSize = engines.length + 1;
  const timeoutSeconds = deadlineSeconds / 2;
  const timeoutMs = deadlineMs(timeoutSeconds);
  const connecting = ranks.all("connectEngines", { host, port, worldSize, prefix, timeoutMs });
  const store = { master_address: host, master_port: port, world_size: worldSize, backend: "c10d", prefix } as const;
  const joining = engines.map(({ url }, index) => {
    const place = { ...store, rank_offset: index + 1, timeout_seconds: timeoutSeconds };
    return fleet.client.initWeightTransfer(url, place, call());
  });
  const trainerJoins = withDeadline(connecting, call().timeoutSeconds, "the trainer to join the transfer group");
  // Before it stands: a half-built group must be taken down as well.
  fleet.transfer = { engines: urls };
  await allOf<unknown>([trainerJoins, ...joining]);
}

async function finish(client: EngineClient, { url }: Engine, version: number, sent: string, options: CallOptions) {
  const held = await client.finishWeightUpdate(url, version, options);
  if (held !== sent) {
    throw new RunnerError(`engine ${url} holds weights with checksum ${held}, the trainer sent ${sent}`);
  }
  const said = await client.weightVersion(url, options);
  if (said !== String(version)) {
    throw new RunnerError(`engine ${url} says version ${said} after version ${version} was sent`);
  }
}

/** After a failure: no group, nobody paused. An engine that cannot resume fails its own attempt too. */
async function abandon(options: SyncOptions, engines: Engine[]): Promise<void> {
  const timeoutSeconds = Math.min(options.deadlineSeconds, 5);
  await disconnect(options).catch((error) => options.log(`the transfer group did not close: ${messageOf(error)}`));
  await Promise.allSettled(engines.map(({ url }) => options.fleet.client.resume(url, { timeoutSeconds })));
}

async function disconnect({ fleet, ranks, deadlineSeconds }: SyncOptions): Promise<void> {
  if (!fleet.transfer) return;
  fleet.transfer = null;
  await withDeadline(ranks.all("disconnectEngines", {}), deadlineSeconds, "the trainer to leave the transfer group");
}

function describeUpdate(units: UnitDescription[]): UpdateInfo {
  const parameters = parametersOf(units);
  return {
    names: parameters.map(({ name }) => name),
    dtype_names: parameters.map(() => "float32"),
    shapes: parameters.map(({ shape }) => shape),
  };
}

/** Waits for all, so that nothing of a failed attempt goes on; rejects with every reason. */
async function allOf<T>(work: Promise<T>[]): Promise<T[]> {
  const settled = await Promise.allSettled(work);
  const failures = settled.flatMap((result) => (result.status === "rejected" ? [messageOf(result.reason)] : []));
  if (failures.length > 0) throw new RunnerError(failures.join("; "));
  return settled.map((result) => (result as PromiseFulfilledResult<T>).value);
}

import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { indented } from "../lists.ts";
import { abortEveryMs, type CallOptions } from "./client.ts";
import type { Engine, EngineFleet } from "./fleet.ts";
import { type EnginePool, everyPool } from "./router.ts";
import { allOf, type Transport } from "./transfer/transport.ts";

export type SyncTarget = Pick<EngineFleet, "router" | "client" | "drop" | "ready">;

export interface SyncOptions {
  fleet: SyncTarget;
  transport: Transport;
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
 * Brings every engine to `version`, verified, once running requests have drained. When an attempt with all
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
    for (const pool of pools) {
      router.version[pool] = inFlight === "keep" ? null : version;
      router.synced[pool] = version;
    }
    return { checksum, engines: router.alive(pools).length, seconds: (performance.now() - started) / 1000 };
  } finally {
    router.release(pools);
    await options.transport.settle?.();
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
      const left = engines.filter((engine) => isAlive(options, engine));
      if (left.length === 0) throw error;
      log(`weight sync to version ${version} failed, trying each engine by itself: ${messageOf(error)}`);
      return tryEach(options, left);
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
  await options.transport.settle?.();
  if (checksum !== null) options.fleet.router.admit(engine, options.version);
}

function isAlive({ fleet }: SyncOptions, engine: Engine): boolean {
  return fleet.router.alive().some(({ url }) => url === engine.url);
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
      if (isAlive(options, engine)) await fleet.drop(engine.engine, reason);
    }
  }
  if (checksum !== null) return checksum;
  throw new RunnerError(`weight sync to version ${version} failed on every engine:${indented(failures)}`);
}

/** All or nothing. Whatever happens, engines are told to resume and the trainer is idle. */
async function attempt(options: SyncOptions, engines: Engine[]): Promise<string> {
  const { fleet, transport, version, inFlight, deadlineSeconds } = options;
  const { client } = fleet;
  const keeps = inFlight === "keep";
  const end = performance.now() + deadlineMs(deadlineSeconds);
  const secondsLeft = () => Number(((end - performance.now()) / deadlineMs(1)).toFixed(2));
  const call = (): CallOptions => ({ timeoutSeconds: Math.max(secondsLeft(), 0.01) });
  const control = (): CallOptions => ({ timeoutSeconds: Math.min(call().timeoutSeconds, controlSeconds) });
  const delivery = { engines, version, call };
  try {
    await allOf(engines.map(({ url }) => client.pause(url, keeps ? "keep" : "abort", !keeps, control())));
    const checksum = await transport.send(delivery);
    await allOf(engines.map(({ url }) => client.resume(url, control())));
    await transport.verify?.(delivery);
    return checksum;
  } catch (error) {
    await abandon(options, engines, messageOf(error));
    throw error;
  }
}

/**
 * After a failure: no group, nobody paused. An engine that cannot resume fails its own attempt too; whose weights are
 * torn must not sample with them.
 */
async function abandon(options: SyncOptions, engines: Engine[], reason: string): Promise<void> {
  const { fleet, transport, deadlineSeconds, log } = options;
  const timeoutSeconds = Math.min(deadlineSeconds, 5);
  const tears = transport.tears === true;
  await transport.abandon?.().catch((error) => log(`the transfer did not end: ${messageOf(error)}`));
  await Promise.allSettled(
    engines.map(({ engine, url }) =>
      tears
        ? fleet.drop(engine, `its weights were half replaced: ${reason}`)
        : fleet.client.resume(url, { timeoutSeconds }),
    ),
  );
}

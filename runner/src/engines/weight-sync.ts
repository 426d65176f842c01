import { randomBytes } from "node:crypto";
import type { UnitDescription } from "molt-native";
import { deadlineMs, withDeadline } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { freePort } from "../trainer/free-port.ts";
import type { RankGroup } from "../trainer/handle.ts";
import type { CallOptions, EngineClient, UpdateInfo } from "./client.ts";
import type { EngineRouter } from "./router.ts";

/** The engines of a run, as a sync sees them. */
export interface SyncTarget {
  readonly router: EngineRouter;
  readonly client: EngineClient;
  /** The group that the last sync left connected. */
  transfer: TransferGroup | null;
  /** Takes an engine that failed out of the router, and ends it where it is ours. */
  drop(engine: number, reason: string): Promise<void>;
}

/** The trainer's ranks, as a sync sees them: rank 0 speaks to the engines, the others take part in gathering. */
export type SyncRanks = Pick<RankGroup, "all">;

/** Disposable: made for one membership, thrown away at any change of it and after any failure. */
export interface TransferGroup {
  prefix: string;
  engines: number[];
}

export interface SyncOptions {
  fleet: SyncTarget;
  ranks: SyncRanks;
  /** Name, shape and order of what is sent. */
  units: UnitDescription[];
  version: number;
  /** What happens to running requests (`train.partial_rollout`): `wait` holds new ones until these have ended. */
  inFlight: "wait";
  /** For running requests to end. */
  drainSeconds: number;
  /** For one attempt at the transfer; a sync takes at most one attempt, and one more an engine. */
  deadlineSeconds: number;
  /** Where engines reach the trainer's rank 0. */
  host?: string;
  log: (line: string) => void;
}

export interface SyncResult {
  checksum: string;
  /** Engines that are at the new version. */
  engines: number;
  seconds: number;
}

/** For a call that moves no weights: an engine that is silent for longer is of no use. */
const controlSeconds = 30;

interface Engine {
  engine: number;
  url: string;
}

/**
 * Brings every engine to `version`, verified by checksum. Requests are held and drain first. When an attempt with all
 * engines fails, each engine is tried once more by itself over a group of its own, which tells the faulty one: that is
 * dropped. Rejects when none is left. No engine that still serves is left paused or at another version.
 */
export async function syncWeights(options: SyncOptions): Promise<SyncResult> {
  const { fleet, inFlight, drainSeconds, version, log } = options;
  const started = performance.now();
  const { router } = fleet;
  router.hold();
  try {
    if (inFlight === "wait") await router.drained(drainSeconds);
    const engines = router.alive();
    let checksum: string;
    try {
      checksum = await attempt(options, engines);
    } catch (error) {
      log(`weight sync to version ${version} failed, trying each engine by itself: ${messageOf(error)}`);
      checksum = await tryEach(options, engines);
    }
    const seconds = (performance.now() - started) / 1000;
    return { checksum, engines: router.alive().length, seconds };
  } finally {
    router.release();
  }
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
      await fleet.drop(engine.engine, reason);
    }
  }
  if (checksum !== null) return checksum;
  throw new RunnerError(`weight sync to version ${version} failed on every engine:\n    ${failures.join("\n    ")}`);
}

/** One transfer to `engines`, all or nothing. Whatever happens, they are told to resume and the trainer is idle. */
async function attempt(options: SyncOptions, engines: Engine[]): Promise<string> {
  const { fleet, ranks, version, deadlineSeconds } = options;
  const { client } = fleet;
  const end = performance.now() + deadlineMs(deadlineSeconds);
  const secondsLeft = () => Number(((end - performance.now()) / deadlineMs(1)).toFixed(2));
  const call = (): CallOptions => ({ timeoutSeconds: Math.max(secondsLeft(), 0.01) });
  const control = (): CallOptions => ({ timeoutSeconds: Math.min(call().timeoutSeconds, controlSeconds) });
  const onAll = <T>(body: (engine: Engine, index: number) => Promise<T>) => allOf(engines.map(body));
  try {
    await onAll(({ url }) => client.pause(url, "abort", true, control()));
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

/** Gloo's deadline is half an attempt's, so that its reason arrives before the attempt's deadline. */
async function ensureGroup(options: SyncOptions, engines: Engine[], call: () => CallOptions): Promise<void> {
  const { fleet, ranks, deadlineSeconds, host = "127.0.0.1" } = options;
  const ids = engines.map(({ engine }) => engine);
  if (String(fleet.transfer?.engines) === String(ids)) return;
  await disconnect(options);
  const port = await freePort();
  const prefix = `transfer-${randomBytes(4).toString("hex")}`;
  const worldSize = engines.length + 1;
  const timeoutSeconds = deadlineSeconds / 2;
  const timeoutMs = deadlineMs(timeoutSeconds);
  const connecting = ranks.all("connectEngines", { host, port, worldSize, prefix, timeoutMs });
  const joining = engines.map(({ url }, index) =>
    fleet.client.initWeightTransfer(
      url,
      {
        master_address: host,
        master_port: port,
        rank_offset: index + 1,
        world_size: worldSize,
        backend: "c10d",
        prefix,
        timeout_seconds: timeoutSeconds,
      },
      call(),
    ),
  );
  const trainerJoins = withDeadline(connecting, call().timeoutSeconds, "the trainer to join the transfer group");
  // Set before it is known to stand: a half-built group must be taken down as well.
  fleet.transfer = { prefix, engines: ids };
  await allOf<unknown>([trainerJoins, ...joining]);
}

/** Checks what the engine says it now holds. */
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

/** After a failure: no group, nobody paused. An engine that cannot resume is tried by itself next, and then dropped. */
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
  const parameters = units.flatMap((unit) => unit.parameters);
  return {
    names: parameters.map(({ name }) => name),
    dtype_names: parameters.map(() => "float32"),
    shapes: parameters.map(({ shape }) => shape),
  };
}

/** Waits for all, so that nothing of a failed attempt is still under way; rejects with every reason. */
async function allOf<T>(work: Promise<T>[]): Promise<T[]> {
  const settled = await Promise.allSettled(work);
  const failures = settled.flatMap((result) => (result.status === "rejected" ? [messageOf(result.reason)] : []));
  if (failures.length > 0) throw new RunnerError(failures.join("; "));
  return settled.map((result) => (result as PromiseFulfilledResult<T>).value);
}

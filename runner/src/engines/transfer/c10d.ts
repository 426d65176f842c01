import { randomBytes } from "node:crypto";
import type { UnitDescription } from "molt-native";
import { parametersOf } from "../../data/decoder.ts";
import { deadlineMs, withDeadline } from "../../deadline.ts";
import { RunnerError } from "../../errors.ts";
import type { CallOptions, EngineClient, UpdateInfo } from "../client.ts";
import type { Engine } from "../fleet.ts";
import { allOf, type Delivery, type SyncRanks, type Transport } from "./transport.ts";

export interface C10dOptions {
  client: EngineClient;
  ranks: SyncRanks;
  units: UnitDescription[];
  /** Of one attempt. Gloo's deadline is half of it, so that its reason arrives first. */
  deadlineSeconds: number;
}

/**
 * Broadcasts to embedded engines, which verify by checksum. A group is for one membership: it is thrown away at any
 * change of that, and after any failure.
 */
export class C10dTransport implements Transport {
  private readonly options: C10dOptions;
  /** Addresses of the group's engines: one that was started again is another member. */
  private members: string[] | null = null;

  constructor(options: C10dOptions) {
    this.options = options;
  }

  async send({ engines, version, call }: Delivery): Promise<string> {
    const { client, ranks, units } = this.options;
    await this.ensureGroup(engines, call);
    await allOf(engines.map(({ url }) => client.startWeightUpdate(url, call())));
    const update = describeUpdate(units);
    const receiving = engines.map(({ url }) => client.updateWeights(url, update, call()));
    const broadcast = ranks.all("broadcastWeights", {});
    const sending = withDeadline(broadcast, call().timeoutSeconds, "the trainer to send its weights");
    await allOf<unknown>([sending, ...receiving]);
    const { checksum } = (await sending)[0]!;
    await allOf(engines.map((engine) => finish(client, engine, version, checksum, call())));
    return checksum;
  }

  async abandon(): Promise<void> {
    if (!this.members) return;
    this.members = null;
    const leaving = this.options.ranks.all("disconnectEngines", {});
    await withDeadline(leaving, this.options.deadlineSeconds, "the trainer to leave the transfer group");
  }

  private async ensureGroup(engines: Engine[], call: () => CallOptions): Promise<void> {
    const { client, ranks, deadlineSeconds } = this.options;
    const { address: host } = ranks.node;
    const urls = engines.map(({ url }) => url);
    if (String(this.members) === String(urls)) return;
    await this.abandon();
    const port = await ranks.node.freePort();
    const prefix = `transfer-${randomBytes(4).toString("hex")}`;
    const worldSize = engines.length + 1;
    const timeoutSeconds = deadlineSeconds / 2;
    const timeoutMs = deadlineMs(timeoutSeconds);
    const connecting = ranks.all("connectEngines", { host, port, worldSize, prefix, timeoutMs });
    const store = { master_address: host, master_port: port, world_size: worldSize, backend: "c10d", prefix } as const;
    const joining = engines.map(({ url }, index) => {
      const place = { ...store, rank_offset: index + 1, timeout_seconds: timeoutSeconds };
      return client.initWeightTransfer(url, place, call());
    });
    const trainerJoins = withDeadline(connecting, call().timeoutSeconds, "the trainer to join the transfer group");
    // Before it stands: a half-built group must be taken down as well.
    this.members = urls;
    await allOf<unknown>([trainerJoins, ...joining]);
  }
}

async function finish(client: EngineClient, { url }: Engine, version: number, sent: string, options: CallOptions) {
  const held = await client.finishWeightUpdate(url, version, options);
  if (held !== sent) {
    throw new RunnerError(`engine ${url} holds weights with checksum ${held}, the trainer sent ${sent}`);
  }
  await client.expectVersion(url, version, options);
}

function describeUpdate(units: UnitDescription[]): UpdateInfo {
  const parameters = parametersOf(units);
  return {
    names: parameters.map(({ name }) => name),
    dtype_names: parameters.map(() => "float32"),
    shapes: parameters.map(({ shape }) => shape),
  };
}

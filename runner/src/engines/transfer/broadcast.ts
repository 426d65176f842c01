import { randomBytes } from "node:crypto";
import type { UnitDescription } from "molt-native";
import { parametersOf } from "../../data/decoder.ts";
import { deadlineMs, withDeadline } from "../../deadline.ts";
import { RunnerError } from "../../errors.ts";
import { addressTowards, isLoopback } from "../../launchers/address.ts";
import { freePort } from "../../launchers/free-port.ts";
import type { CallOptions, EngineClient, UpdateInfo } from "../client.ts";
import type { Engine } from "../fleet.ts";
import type { Canary } from "./canary.ts";
import { allOf, type Delivery, type SyncRanks, type Transport } from "./transport.ts";

export interface BroadcastOptions {
  client: EngineClient;
  ranks: SyncRanks;
  units: UnitDescription[];
  /** Of one attempt. The group's deadline is half of it, so that its reason arrives first. */
  deadlineSeconds: number;
  /** Of vLLM's engines, over NCCL: what the weights are sent in, and what verifies them. Others are embedded. */
  vllm?: { dtype: "float32" | "bfloat16"; canary: Canary };
}

const bucketBytes = 2 ** 30;
/** vLLM's names of "packed": tensors end to end, a bucket ends with the one that exceeds its size. */
const packed = { packed: true, packed_buffer_size_bytes: bucketBytes, packed_num_buffers: 2 };

/**
 * Broadcasts to embedded engines over c10d, which verify by checksum, or to vLLM's own group. A group is for one
 * membership: it is thrown away at any change of that, and after any failure.
 */
export class BroadcastTransport implements Transport {
  /** Addresses of the group's engines: one that was started again is another member. */
  private members: string[] | null = null;
  /** vLLM's that have a communicator, of this group or one before: another would leave it there. */
  private readonly joined = new Set<string>();
  tears = false;

  constructor(private readonly options: BroadcastOptions) {}

  async send({ engines, version, call }: Delivery): Promise<string> {
    const { client, ranks, units, vllm } = this.options;
    await this.ensureGroup(engines, call);
    // An embedded engine refuses to serve what is not whole.
    this.tears = vllm !== undefined;
    await allOf(engines.map(({ url }) => client.startWeightUpdate(url, call())));
    const update = describeUpdate(units, vllm?.dtype ?? "float32");
    const receiving = engines.map(({ url }) => client.updateWeights(url, update, call()));
    const format = vllm && { dtype: vllm.dtype, bucketBytes };
    const broadcast = ranks.all("broadcastWeights", { format });
    const sending = withDeadline(broadcast, call().timeoutSeconds, "the trainer to send its weights");
    await allOf<unknown>([sending, ...receiving]);
    const { checksum } = (await sending)[0]!;
    const finish = async (url: string) => {
      const held = await client.finishWeightUpdate(url, version, call());
      if (!vllm && held !== checksum) {
        throw new RunnerError(`engine ${url} holds weights with checksum ${held}, the trainer sent ${checksum}`);
      }
      await client.expectVersion(url, version, call());
    };
    await allOf(engines.map(({ url }) => finish(url)));
    this.tears = false;
    return checksum;
  }

  async verify(delivery: Delivery): Promise<void> {
    await this.options.vllm?.canary.check(delivery);
  }

  async abandon(): Promise<void> {
    this.tears = false;
    if (!this.members) return;
    this.members = null;
    const leaving = this.options.ranks.all("disconnectEngines", {});
    await withDeadline(leaving, this.options.deadlineSeconds, "the trainer to leave the transfer group");
  }

  private async ensureGroup(engines: Engine[], call: () => CallOptions): Promise<void> {
    const { client, ranks, deadlineSeconds, vllm } = this.options;
    const urls = engines.map(({ url }) => url);
    if (String(this.members) === String(urls)) return;
    await this.abandon();
    await allOf(urls.filter((url) => this.joined.has(url)).map((url) => client.shutdownWeightTransfer(url, call())));
    const { host, port } = await this.meetingPlace(urls);
    const prefix = `transfer-${randomBytes(4).toString("hex")}`;
    const sizes = await allOf(urls.map((url) => client.worldSize(url, call())));
    const offsets = sizes.map((_, index) => sizes.slice(0, index).reduce((sum, size) => sum + size, 1));
    const worldSize = sizes.reduce((sum, size) => sum + size, 1);
    const timeoutSeconds = deadlineSeconds / 2;
    const group = { host, port, worldSize, prefix, timeoutMs: deadlineMs(timeoutSeconds) };
    const connecting = ranks.all("connectEngines", vllm ? { ...group, backend: "vllm" } : group);
    const kind = vllm ? packed : ({ backend: "c10d", prefix, timeout_seconds: timeoutSeconds } as const);
    const joining = urls.map((url, index) => {
      const place = { master_address: host, master_port: port, world_size: worldSize, rank_offset: offsets[index]! };
      return client.initWeightTransfer(url, { ...place, ...kind }, call());
    });
    const trainerJoins = withDeadline(connecting, call().timeoutSeconds, "the trainer to join the transfer group");
    // Before it stands: a half-built group must be taken down as well.
    this.members = urls;
    if (vllm) for (const url of urls) this.joined.add(url);
    await allOf<unknown>([trainerJoins, ...joining]);
  }

  /** Where engines find the trainer: on other machines not at the loopback of a run that starts nothing there. */
  private async meetingPlace(urls: string[]): Promise<{ host: string; port: number }> {
    const { node } = this.options.ranks;
    const far = urls.map((url) => new URL(url).hostname).find((host) => !isLoopback(host));
    if (far === undefined || !isLoopback(node.address)) return { host: node.address, port: await node.freePort() };
    const host = await addressTowards(far);
    return { host, port: await freePort(host) };
  }
}

function describeUpdate(units: UnitDescription[], dtype: string): UpdateInfo {
  const parameters = parametersOf(units);
  return {
    names: parameters.map(({ name }) => name),
    dtype_names: parameters.map(() => dtype),
    shapes: parameters.map(({ shape }) => shape),
  };
}

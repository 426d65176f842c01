import type { ProcessGroup, ProcessGroupOptions, UnitDescription } from "molt-native";
import { deadlineMs, withDeadline } from "../../deadline.ts";
import type { TransferInit, UpdateInfo } from "../client.ts";
import { HttpError } from "./http-error.ts";
import type { SamplerLike, Scheduler } from "./scheduler.ts";

export type ConnectTransfer = (options: ProcessGroupOptions) => Promise<ProcessGroup>;

/** More than Gloo's own deadline, so that its reason arrives first. */
const graceSeconds = 2;

/**
 * The four calls that replace the weights. An update counts when every parameter has arrived and `finish` names its
 * version; until then nothing is sampled. One that breaks off before its first byte changes nothing; one that breaks
 * off later leaves weights of no version, and the engine refuses to go on until a whole update has arrived.
 */
export class WeightUpdates {
  private readonly sampler: SamplerLike;
  private readonly scheduler: Scheduler;
  private readonly connect: ConnectTransfer;
  private readonly shapes: Map<string, number[]>;
  private group: ProcessGroup | null = null;
  private timeoutSeconds = 0;
  /** Of the update under way. From the first byte to `finish` the weights are of no version. */
  private stage: "started" | "torn" | "received" | null = null;

  constructor(sampler: SamplerLike, scheduler: Scheduler, units: UnitDescription[], connect: ConnectTransfer) {
    this.sampler = sampler;
    this.scheduler = scheduler;
    this.connect = connect;
    this.shapes = new Map(units.flatMap(({ parameters }) => parameters.map(({ name, shape }) => [name, shape])));
  }

  async init(info: TransferInit): Promise<void> {
    if (info?.backend !== "c10d") {
      throw new HttpError(400, `init_info.backend ${JSON.stringify(info?.backend)} is not "c10d"`, "init_info.backend");
    }
    this.close();
    this.timeoutSeconds = info.timeout_seconds;
    const joining = this.connect({
      host: info.master_address,
      port: info.master_port,
      rank: info.rank_offset,
      worldSize: info.world_size,
      prefix: info.prefix,
      serveStore: false,
      timeoutMs: deadlineMs(info.timeout_seconds),
    });
    const what = `the transfer group at ${info.master_address}:${info.master_port}`;
    this.group = await withDeadline(joining, info.timeout_seconds + graceSeconds, what);
  }

  start(): void {
    if (!this.scheduler.isQuiet) throw new HttpError(400, "pause the engine before its weights are updated");
    // What broke off stays broken until every tensor has come.
    this.stage = this.stage === null || this.stage === "started" ? "started" : "torn";
  }

  /** Every parameter, in the order in which the trainer broadcasts. */
  async update(info: UpdateInfo): Promise<void> {
    if (!this.group) throw new HttpError(400, "no transfer group: call /init_weight_transfer_engine first");
    if (this.stage === null) throw new HttpError(400, "no update was started: call /start_weight_update first");
    this.check(info);
    const { names } = info;
    this.stage = "torn";
    const receiving = this.sampler.receive(this.group, names);
    await withDeadline(receiving, this.timeoutSeconds + graceSeconds, `the broadcast of ${names.length} tensors`);
    this.stage = "received";
  }

  /** Checksum of the weights, which are `version` from now on. */
  async finish(version: string | undefined): Promise<string> {
    if (this.stage !== "received") throw new HttpError(400, "no whole update has arrived: call /update_weights first");
    const checksum = await this.sampler.checksum();
    this.stage = null;
    if (version !== undefined) this.scheduler.version = version;
    return checksum;
  }

  /** An update without a byte may be given up. */
  resume(): void {
    if (this.stage === "torn" || this.stage === "received") {
      throw new HttpError(409, "a weight update broke off: the weights are of no version until an update is finished");
    }
    this.stage = null;
    this.scheduler.resume();
  }

  close(): void {
    this.group?.close();
    this.group = null;
  }

  private check({ names, dtype_names, shapes }: UpdateInfo): void {
    if (!Array.isArray(names) || names.length !== dtype_names?.length || names.length !== shapes?.length) {
      throw new HttpError(400, "update_info.names, dtype_names and shapes must be lists of one length", "update_info");
    }
    const unknown = names.filter((name) => !this.shapes.has(name));
    if (unknown.length > 0)
      throw new HttpError(400, `not a tensor of this model: ${few(unknown)}`, "update_info.names");
    const missing = [...this.shapes.keys()].filter((name) => !names.includes(name));
    if (missing.length > 0) {
      const message = `the update is not whole: ${missing.length} tensors are not named: ${few(missing)}`;
      throw new HttpError(400, message, "update_info.names");
    }
    names.forEach((name, index) => {
      const shape = this.shapes.get(name)!;
      if (String(shapes[index]) !== String(shape)) {
        const message = `${name} is [${shape}], not [${shapes[index]}]`;
        throw new HttpError(400, message, "update_info.shapes");
      }
      if (dtype_names[index] !== "float32") {
        throw new HttpError(400, `${name} is float32, not ${dtype_names[index]}`, "update_info.dtype_names");
      }
    });
  }
}

function few(names: string[]): string {
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ", …" : "");
}

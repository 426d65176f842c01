import type { ProcessGroup, ProcessGroupOptions, UnitDescription } from "molt-native";
import { parametersOf } from "../../data/decoder.ts";
import { deadlineMs, withDeadline } from "../../deadline.ts";
import { shorten } from "../../lists.ts";
import type { TransferInit, UpdateInfo } from "../client.ts";
import { badRequest, HttpError } from "./http-error.ts";
import type { SamplerLike, Scheduler } from "./scheduler.ts";

export type ConnectTransfer = (options: ProcessGroupOptions) => Promise<ProcessGroup>;

/** Beyond Gloo's own deadline, so that its reason arrives first. */
const graceSeconds = 2;

/**
 * Between the first and the last of an update's calls nothing is sampled. Broken off before its first byte it changes
 * nothing; later it leaves weights of no version, and the engine refuses to go on until a whole update has arrived.
 */
export class WeightUpdates {
  private readonly shapes: Map<string, number[]>;
  private group: ProcessGroup | null = null;
  private timeoutSeconds = 0;
  /** From the first byte to `finish` the weights are of no version. */
  private stage: "started" | "torn" | "received" | null = null;

  constructor(
    private readonly sampler: SamplerLike,
    private readonly scheduler: Scheduler,
    units: UnitDescription[],
    private readonly connect: ConnectTransfer,
  ) {
    this.shapes = new Map(parametersOf(units).map(({ name, shape }) => [name, shape]));
  }

  async init(info: TransferInit): Promise<void> {
    if (info?.backend !== "c10d") {
      throw badRequest(`init_info.backend ${JSON.stringify(info?.backend)} is not "c10d"`, "init_info.backend");
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
      // NCCL refuses two processes on one GPU, which trainer and engine may share.
      backend: "gloo",
    });
    const what = `the transfer group at ${info.master_address}:${info.master_port}`;
    this.group = await withDeadline(joining, info.timeout_seconds + graceSeconds, what);
  }

  start(): void {
    if (!this.scheduler.isQuiet) throw badRequest("pause the engine before its weights are updated");
    // What broke off stays broken until every tensor has come.
    this.stage = this.stage === null || this.stage === "started" ? "started" : "torn";
  }

  async update(info: UpdateInfo): Promise<void> {
    if (!this.group) throw badRequest("no transfer group: call /init_weight_transfer_engine first");
    if (this.stage === null) throw badRequest("no update was started: call /start_weight_update first");
    this.check(info);
    const { names } = info;
    this.stage = "torn";
    const receiving = this.sampler.receive(this.group, names);
    await withDeadline(receiving, this.timeoutSeconds + graceSeconds, `the broadcast of ${names.length} tensors`);
    this.stage = "received";
  }

  async finish(version: string | undefined): Promise<string> {
    if (this.stage !== "received") throw badRequest("no whole update has arrived: call /update_weights first");
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
    const refuse = (message: string, field = "") => {
      throw badRequest(message, `update_info${field}`);
    };
    if (!Array.isArray(names) || names.length !== dtype_names?.length || names.length !== shapes?.length) {
      refuse("update_info.names, dtype_names and shapes must be lists of one length");
    }
    const unknown = names.filter((name) => !this.shapes.has(name));
    if (unknown.length > 0) refuse(`not a tensor of this model: ${shorten(unknown, 3)}`, ".names");
    const missing = [...this.shapes.keys()].filter((name) => !names.includes(name));
    const what = `${missing.length} tensors are not named: ${shorten(missing, 3)}`;
    if (missing.length > 0) refuse(`the update is not whole: ${what}`, ".names");
    names.forEach((name, index) => {
      const shape = String(this.shapes.get(name));
      if (String(shapes[index]) !== shape) refuse(`${name} is [${shape}], not [${shapes[index]}]`, ".shapes");
      if (dtype_names[index] !== "float32") refuse(`${name} is float32, not ${dtype_names[index]}`, ".dtype_names");
    });
  }
}

import { Mask } from "../../agents/types.ts";
import { withDeadline } from "../../deadline.ts";
import { RunnerError } from "../../errors.ts";
import { type EngineClient, toReplica } from "../client.ts";
import { uniform } from "../embedded/philox.ts";
import { allOf, type Delivery, type SyncRanks } from "./transport.ts";

export interface CanaryOptions {
  client: EngineClient;
  ranks: Pick<SyncRanks, "all">;
  vocabSize: number;
  maxLen: number;
  /** Data-parallel ones of each engine. */
  replicas: number;
  /** Mean difference from the trainer's log-probabilities that rounding explains, in nats. */
  tolerance: number;
}

/** Of log-probabilities over a few dozen tokens; what engine and trainer compute in, whichever is coarser. */
export const tolerances = { float32: 1e-3, bf16: 0.2 } as const;

const probeLength = 32;

/** For engines that fuse weights, of which no checksum can be taken: what they say of a fixed prompt. */
export class Canary {
  private readonly probe: Int32Array;
  /** The trainer's, of the version that was last asked for. */
  private expected: { version: number; logprobs: Float32Array } | null = null;

  constructor(private readonly options: CanaryOptions) {
    const length = Math.max(2, Math.min(probeLength, options.maxLen - 1));
    this.probe = Int32Array.from({ length }, (_, t) => Math.floor(uniform(0, t) * options.vocabSize));
  }

  async check({ engines, version, call }: Delivery): Promise<void> {
    const { client, tolerance, replicas } = this.options;
    if (this.expected?.version !== version) {
      const scoring = withDeadline(this.score(), call().timeoutSeconds, "the trainer to score the canary");
      this.expected = { version, logprobs: await scoring };
    }
    const { logprobs } = this.expected;
    const check = async (url: string, replica?: number) => {
      const said = await client.promptLogprobs(url, this.probe, { ...call(), headers: toReplica(replica) });
      const gaps = said.map((logprob, t) => Math.abs(logprob - logprobs[t + 1]!));
      const gap = gaps.reduce((sum, one) => sum + one, 0) / gaps.length;
      if (gap <= tolerance) return;
      const compared = `${gap.toFixed(4)} nats a token from the trainer's, more than ${tolerance}`;
      throw new RunnerError(`engine ${url} does not have the weights of version ${version}: its canary is ${compared}`);
    };
    const ranks = replicas > 1 ? Array.from({ length: replicas }, (_, rank) => rank) : [undefined];
    await allOf(engines.flatMap(({ url }) => ranks.map((rank) => check(url, rank))));
  }

  private async score(): Promise<Float32Array> {
    const { ranks } = this.options;
    const { length } = this.probe;
    const row = { id: "canary", tokens: this.probe, mask: new Uint8Array(length).fill(Mask.trained) };
    const one = new Float32Array(length).fill(1);
    await ranks.all("putRows", { rows: [{ ...row, logprobs: one, temperatures: one }] });
    const [scored] = await ranks.all("logprobs", { ids: [row.id] });
    await ranks.all("dropRows", { ids: [row.id] });
    return scored!.logprobs[0]!;
  }
}

import { join } from "node:path";
import { AdamW, Model, ProcessGroup, setThreads } from "molt-native";
import { checkCorrection } from "../algorithms/corrections/correction.ts";
import { policyLoss } from "../algorithms/losses/registry.ts";
import type { UpdateMetrics } from "../algorithms/metrics.ts";
import { exportHeader } from "../data/model-folder.ts";
import { RunnerError } from "../errors.ts";
import { accumulate } from "./accumulate.ts";
import { dummyRow, packRows, type StoredRow, unpackRows } from "./packing.ts";
import type { InitParams, ModelSpec, RankMethods, UpdateParams, UpdateResult } from "./protocol.ts";
import { readShard, type ShardIdentity, shardHeader, shardPath } from "./shard-file.ts";

type Handlers = { [M in keyof RankMethods]: (params: RankMethods[M][0]) => Promise<RankMethods[M][1]> };

interface State {
  params: InitParams;
  group: ProcessGroup | null;
  policy: Model;
  ref: Model | null;
  optimizer: AdamW;
}

/** A rank's methods; one runs at a time. Keeps training rows by id between the phases. */
export class RankTrainer implements Handlers {
  private readonly rank: number;
  private readonly rows = new Map<string, StoredRow>();
  private current: State | null = null;
  private transfer: ProcessGroup | null = null;

  constructor(rank: number) {
    this.rank = rank;
  }

  async init(params: InitParams): Promise<undefined> {
    policyLoss(params.loss.name);
    checkCorrection(params.loss.correction);
    await setThreads(params.threads);
    const { worldSize, store } = params;
    const serveStore = this.rank === 0;
    const joining = { ...store, rank: this.rank, worldSize, prefix: "train", serveStore };
    const group = worldSize === 1 ? null : await ProcessGroup.create(joining);
    const policy = await createModel(params.policy, group, true);
    const ref = params.ref && (await createModel(params.ref, group, false));
    const { betas, eps, weightDecay } = params.optimizer;
    const optimizer = new AdamW(policy, { beta1: betas[0], beta2: betas[1], eps, weightDecay });
    this.current = { params, group, policy, ref, optimizer };
  }

  async putRows({ rows }: { rows: StoredRow[] }): Promise<undefined> {
    for (const row of rows) this.rows.set(row.id, row);
  }

  async dropRows({ ids }: { ids: string[] }): Promise<undefined> {
    for (const id of ids) this.rows.delete(id);
  }

  async score({ microbatches, as }: { microbatches: string[][]; as: "old" | "ref" }): Promise<undefined> {
    const { policy, ref } = this.state;
    const model = as === "old" ? policy : ref;
    if (model === null) throw new RunnerError("no reference model was loaded: algo.kl has no coefficient");
    for (const ids of microbatches) {
      const logprobs = await this.forward(model, ids);
      ids.forEach((id, index) => {
        this.row(id)[as] = logprobs[index]!;
      });
    }
  }

  async putAdvantages({ ids, advantages }: { ids: string[]; advantages: Float32Array[] }): Promise<undefined> {
    ids.forEach((id, index) => {
      this.row(id).advantages = advantages[index]!;
    });
  }

  /** No step where any rank's gradient is not finite. */
  async update({ microbatches, numTokens, learningRate }: UpdateParams): Promise<UpdateResult> {
    if (numTokens <= 0) throw new RunnerError("an update needs a trainable token");
    const { policy, optimizer, params } = this.state;
    const metrics: UpdateMetrics = { sums: {}, maxima: {} };
    for (const ids of microbatches) await accumulate(policy, this.rowsOf(ids), params.loss, numTokens, metrics);
    const gradientNorm = await policy.gradientNorm();
    const finite = Number.isFinite(gradientNorm);
    const nonFinite = finite ? null : await policy.nonFiniteGradients();
    // As torch.nn.utils.clip_grad_norm_.
    if (finite) await optimizer.step(learningRate, Math.min(1, params.optimizer.maxNorm / (gradientNorm + 1e-6)));
    await policy.zeroGradients();
    return { ...metrics, gradientNorm, nonFinite };
  }

  async logprobs({ ids }: { ids: string[] }): Promise<{ logprobs: Float32Array[] }> {
    return { logprobs: await this.forward(this.state.policy, ids) };
  }

  async connectEngines(transfer: RankMethods["connectEngines"][0]): Promise<undefined> {
    await this.disconnectEngines();
    if (this.rank === 0) this.transfer = await ProcessGroup.create({ ...transfer, rank: 0, serveStore: true });
  }

  async broadcastWeights(): Promise<{ checksum: string }> {
    if (this.rank === 0 && this.transfer === null) throw new RunnerError("no engines are connected");
    await this.state.policy.broadcast(this.transfer);
    return this.checksum();
  }

  async disconnectEngines(): Promise<undefined> {
    this.transfer?.close();
    this.transfer = null;
  }

  async checksum(): Promise<{ checksum: string }> {
    return { checksum: await this.state.policy.checksum() };
  }

  async saveCheckpoint({ directory }: { directory: string }): Promise<{ file: string; stepCount: number }> {
    const { optimizer } = this.state;
    const file = shardPath(directory, this.rank);
    await optimizer.saveShard(file, shardHeader(this.identity(), optimizer.stepCount));
    return { file, stepCount: optimizer.stepCount };
  }

  async loadCheckpoint({ directory }: { directory: string }): Promise<{ stepCount: number }> {
    const { optimizer } = this.state;
    const file = shardPath(directory, this.rank);
    const { offset, stepCount } = readShard(file, this.identity());
    await optimizer.loadShard(file, offset);
    optimizer.stepCount = stepCount;
    return { stepCount };
  }

  async exportWeights({ directory }: { directory: string }): Promise<undefined> {
    const { policy, params } = this.state;
    await policy.save(join(directory, "model.safetensors"), exportHeader(params.policy.units));
  }

  close(): void {
    this.transfer?.close();
    this.current?.group?.close();
  }

  private get state(): State {
    if (this.current === null) throw new RunnerError("the first request to a rank is init");
    return this.current;
  }

  private row(id: string): StoredRow {
    const row = this.rows.get(id);
    if (row === undefined) throw new RunnerError(`rank ${this.rank} holds no row ${id}`);
    return row;
  }

  private rowsOf(ids: string[]): StoredRow[] {
    return ids.map((id) => this.row(id));
  }

  private async forward(model: Model, ids: string[]): Promise<Float32Array[]> {
    const rows = this.rowsOf(ids);
    const { packed } = packRows(rows.length > 0 ? rows : [dummyRow()]);
    const { logp, entropy } = await model.forward(packed, false);
    const values = await logp.data();
    logp.dispose();
    entropy.dispose();
    return unpackRows(rows, packed.cu, values);
  }

  private identity(): ShardIdentity {
    const { policy, params } = this.state;
    const { worldSize } = params;
    return { rank: this.rank, worldSize, shardSize: policy.shardSize, units: params.policy.units };
  }
}

async function createModel(spec: ModelSpec, group: ProcessGroup | null, trainable: boolean): Promise<Model> {
  const { config, units, dtype, gradientCheckpoint } = spec;
  const model = await Model.create({ config, units, dtype, gradientCheckpoint, group, trainable });
  if (spec.weights === null) await model.initialize(spec.seed);
  else await model.load(spec.weights);
  return model;
}

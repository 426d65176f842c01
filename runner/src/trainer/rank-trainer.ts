import { join } from "node:path";
import { AdamW, Model, ProcessGroup, type ProcessGroupOptions, setThreads } from "molt-native";
import { policyLosses } from "../algorithms/losses/registry.ts";
import type { UpdateMetrics } from "../algorithms/metrics.ts";
import { exportHeader } from "../data/model-folder.ts";
import { RunnerError } from "../errors.ts";
import { accumulate, type Loss } from "./accumulate.ts";
import { loadAlgorithm } from "./load-algorithm.ts";
import { dummyRow, packRows, type StoredRow, unpackRows } from "./packing.ts";
import type { InitParams, ModelSpec, UpdateParams, UpdateResult } from "./protocol.ts";
import { readShard, type ShardIdentity, shardHeader, shardPath, snapshotShard } from "./shard-file.ts";

interface State {
  params: InitParams;
  loss: Loss;
  group: ProcessGroup | null;
  policy: Model;
  ref: Model | null;
  optimizer: AdamW;
}

/** A rank's methods; one runs at a time. Keeps training rows by id between the phases. */
export class RankTrainer {
  private readonly rank: number;
  private readonly rows = new Map<string, StoredRow>();
  private current: State | null = null;
  private transfer: ProcessGroup | null = null;
  private written: Promise<void> = Promise.resolve();

  constructor(rank: number) {
    this.rank = rank;
  }

  async init(params: InitParams): Promise<undefined> {
    const policyLoss = await loadAlgorithm(policyLosses, params.loss.name, "actor.loss_mode");
    const loss = { ...params.loss, policyLoss };
    await setThreads(params.threads);
    const { worldSize, store } = params;
    const serveStore = this.rank === 0;
    const joining = { ...store, rank: this.rank, worldSize, prefix: "train", serveStore };
    const group = worldSize === 1 ? null : await ProcessGroup.create(joining);
    const policy = await createModel(params.policy, group, true);
    const ref = params.ref && (await createModel(params.ref, group, false));
    const { betas, eps, weightDecay } = params.optimizer;
    const optimizer = new AdamW(policy, { beta1: betas[0], beta2: betas[1], eps, weightDecay });
    this.current = { params, loss, group, policy, ref, optimizer };
  }

  async putRows({ rows }: { rows: StoredRow[] }): Promise<undefined> {
    for (const row of rows) this.rows.set(row.id, row);
  }

  async dropRows({ ids }: { ids: string[] }): Promise<undefined> {
    for (const id of ids) this.rows.delete(id);
  }

  /** Forward without gradient; kept as the rows' `old` or `ref` log-probabilities, and told in the rows' order. */
  async score({ microbatches, as }: { microbatches: string[][]; as: "old" | "ref" }) {
    const { policy, ref } = this.state;
    const model = as === "old" ? policy : ref;
    if (model === null) throw new RunnerError("no reference model was loaded: algo.kl has no coefficient");
    const logprobs: Float32Array[] = [];
    for (const ids of microbatches) logprobs.push(...(await this.forward(model, ids)));
    microbatches.flat().forEach((id, index) => {
      this.row(id)[as] = logprobs[index]!;
    });
    return { logprobs };
  }

  /** One value a token (0 on untrained ones); of each row, what its tokens count in the update's aggregation. */
  async putAdvantages(values: { ids: string[]; advantages: Float32Array[]; shares: number[] }): Promise<undefined> {
    values.ids.forEach((id, index) => {
      Object.assign(this.row(id), { advantages: values.advantages[index], share: values.shares[index] });
    });
  }

  /** No step where any rank's gradient is not finite. */
  async update({ microbatches, numTokens, learningRate, klCoef }: UpdateParams): Promise<UpdateResult> {
    if (numTokens <= 0) throw new RunnerError("an update needs a trainable token");
    const { policy, optimizer, params } = this.state;
    const loss = { ...this.state.loss, kl: { ...params.loss.kl, coef: klCoef } };
    const metrics: UpdateMetrics = { sums: {}, maxima: {} };
    for (const ids of microbatches) await accumulate(policy, this.rowsOf(ids), loss, numTokens, metrics);
    const gradientNorm = await policy.gradientNorm();
    const finite = Number.isFinite(gradientNorm);
    const nonFinite = finite ? null : await policy.nonFiniteGradients();
    // As torch.nn.utils.clip_grad_norm_.
    if (finite) await optimizer.step(learningRate, Math.min(1, params.optimizer.maxNorm / (gradientNorm + 1e-6)));
    await policy.zeroGradients();
    return { ...metrics, gradientNorm, nonFinite };
  }

  /** Of stored rows, in one microbatch. Collective. */
  async logprobs({ ids }: { ids: string[] }) {
    return { logprobs: await this.forward(this.state.policy, ids) };
  }

  /** Rank 0 joins as the group's rank 0 and serves its store; others do nothing. */
  async connectEngines(transfer: Omit<ProcessGroupOptions, "rank" | "serveStore">): Promise<undefined> {
    await this.disconnectEngines();
    if (this.rank === 0) this.transfer = await ProcessGroup.create({ ...transfer, rank: 0, serveStore: true });
  }

  async broadcastWeights() {
    if (this.rank === 0 && this.transfer === null) throw new RunnerError("no engines are connected");
    await this.state.policy.broadcast(this.transfer);
    return this.checksum();
  }

  async disconnectEngines(): Promise<undefined> {
    this.transfer?.close();
    this.transfer = null;
  }

  /** Of the weights. Collective. */
  async checksum() {
    return { checksum: await this.state.policy.checksum() };
  }

  /** `rank<r>.safetensors`, in an existing directory: what the rank holds now, on the disk once it is written. */
  async saveCheckpoint({ directory }: { directory: string }) {
    const { optimizer } = this.state;
    const file = shardPath(directory, this.rank);
    const [identity, { stepCount }] = [this.identity(), optimizer];
    const save = (path: string) => optimizer.saveShard(path, shardHeader(identity, stepCount));
    this.written = (await snapshotShard(file, identity, save))();
    this.written.catch(() => {}); // `checkpointWritten` says it
    return { file, stepCount };
  }

  /** When it is. Answered out of turn: training goes on meanwhile. */
  async checkpointWritten(): Promise<undefined> {
    await this.written;
  }

  async loadCheckpoint({ directory }: { directory: string }) {
    const { optimizer } = this.state;
    const file = shardPath(directory, this.rank);
    const { offset, stepCount } = readShard(file, this.identity());
    await optimizer.loadShard(file, offset);
    optimizer.stepCount = stepCount;
    return { stepCount };
  }

  /** Rank 0 writes `model.safetensors`, in an existing directory. */
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
  const { weights, seed, ...options } = spec;
  const model = await Model.create({ ...options, group, trainable });
  await (weights === null ? model.initialize(seed) : model.load(weights));
  return model;
}

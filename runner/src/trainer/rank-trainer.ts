import { join } from "node:path";
import {
  AdamW,
  Model,
  memory,
  ProcessGroup,
  type ProcessGroupOptions,
  recordCollectives,
  setThreads,
  type Tensor,
} from "molt-native";
import { sum } from "../algorithms/advantages/estimator.ts";
import { policyLosses } from "../algorithms/losses/registry.ts";
import { addMetrics, type UpdateMetrics } from "../algorithms/metrics.ts";
import { adapterUnits } from "../data/adapters.ts";
import { exportHeader } from "../data/model-folder.ts";
import { RunnerError } from "../errors.ts";
import { accumulate, accumulateValues, type Loss } from "./accumulate.ts";
import { loadAlgorithm } from "./load-algorithm.ts";
import { replayed } from "./mixture.ts";
import { dummyRow, isTrained, packRows, type StoredRow, unpackRows } from "./packing.ts";
import type { InitParams, ModelSpec, OptimizerSpec, UpdateParams, UpdateResult } from "./protocol.ts";
import { openShard, type ShardIdentity, shardHeader, shardPath, snapshotShard } from "./shard-file.ts";

interface State {
  params: InitParams;
  loss: Loss;
  groups: Groups;
  policy: Model;
  /** Checksum of the policy's weights below its adapters; null where it has none. */
  base: string | null;
  ref: Model | null;
  optimizer: AdamW;
  critic: { model: Model; optimizer: AdamW } | null;
}

type Groups = Record<"group" | "contextGroup" | "expertGroup" | "expertDataGroup", ProcessGroup | null>;

/** A rank's methods; one runs at a time. Keeps training rows by id between the phases. */
export class RankTrainer {
  private readonly rows = new Map<string, StoredRow>();
  private current: State | null = null;
  private transfer: ProcessGroup | null = null;
  private written: Promise<void> = Promise.resolve();

  constructor(private readonly rank: number) {}

  async init(params: InitParams): Promise<undefined> {
    const policyLoss = await loadAlgorithm(policyLosses, params.loss.name, "actor.loss_mode");
    const { config } = params.policy;
    const mixture = config.moe ? { ...params.mixture, config, moe: config.moe } : null;
    const loss = { ...params.loss, policyLoss, mixture };
    await setThreads(1);
    const groups = await createGroups(this.rank, params);
    const policy = await createModel(params.policy, groups, true);
    // Before training its adapters add nothing.
    const base = isAdapted(params.policy) ? await policy.checksum() : null;
    const ref =
      params.ref === "base" ? await policy.base() : params.ref && (await createModel(params.ref, groups, false));
    const optimizer = createOptimizer(policy, params.optimizer);
    const model = params.critic && (await createModel(params.critic.model, groups, true));
    const critic = model && { model, optimizer: createOptimizer(model, params.critic!.optimizer) };
    this.current = { params, loss, groups, policy, base, ref, optimizer, critic };
  }

  async putRows({ rows }: { rows: StoredRow[] }): Promise<undefined> {
    for (const row of rows) this.rows.set(row.id, row);
  }

  /** Tells what their updates found, in the ids' order. */
  async dropRows({ ids }: { ids: string[] }) {
    const found = this.rowsOf(ids).map(({ trainerLogprobs, entropy }) => ({ trainerLogprobs, entropy }));
    for (const id of ids) this.rows.delete(id);
    return { found };
  }

  /**
   * Forward without gradient; kept as the rows' `old` or `ref` log-probabilities or the critic's `values`, and told in
   * the rows' order.
   */
  async score({ microbatches, as }: { microbatches: string[][]; as: "old" | "ref" | "values" }) {
    const { policy, ref, critic } = this.state;
    const model = { old: policy, ref, values: critic?.model ?? null }[as];
    if (model === null) throw new RunnerError(`no model was loaded that gives ${as}`);
    const logprobs: Float32Array[] = [];
    for (const ids of microbatches) logprobs.push(...(await this.forward(model, ids)));
    microbatches.flat().forEach((id, index) => {
      this.row(id)[as] = logprobs[index]!;
    });
    return { logprobs };
  }

  /** One value a token (0 on untrained ones); `share`: what the row's tokens count in the update's aggregation. */
  async putAdvantages({ rows }: { rows: Pick<StoredRow, "id" | "advantages" | "returns" | "share">[] }) {
    for (const row of rows) Object.assign(this.row(row.id), row);
    return undefined;
  }

  /** No model steps where any rank's gradient of any is not finite. */
  async update(update: UpdateParams): Promise<UpdateResult> {
    const { microbatches, numTokens, learningRate, criticLearningRate, klCoef, measuresLive } = update;
    if (numTokens <= 0) throw new RunnerError("an update needs a trainable token");
    const { policy, optimizer, critic, params } = this.state;
    const metrics: UpdateMetrics = { sums: {}, maxima: {} };
    const trained: [model: Model, optimizer: AdamW, spec: OptimizerSpec, rate: number][] = [];
    if (learningRate !== null) {
      if (measuresLive) await this.measureLive(microbatches[0]!, metrics);
      const loss = { ...this.state.loss, kl: { ...params.loss.kl, coef: klCoef } };
      for (const ids of microbatches) await accumulate(policy, this.rowsOf(ids), loss, numTokens, metrics);
      trained.push([policy, optimizer, params.optimizer, learningRate]);
    }
    if (critic && criticLearningRate !== null) {
      const { valueClip, optimizer: spec } = params.critic!;
      for (const ids of microbatches) {
        await accumulateValues(critic.model, this.rowsOf(ids), valueClip, numTokens, metrics);
      }
      trained.push([critic.model, critic.optimizer, spec, criticLearningRate]);
    }
    const norms = new Map<Model, number>();
    for (const [model] of trained) norms.set(model, await model.gradientNorm());
    const finite = [...norms.values()].every(Number.isFinite);
    const nonFinite: string[] = [];
    for (const [model, stepper, { maxNorm }, rate] of trained) {
      // As torch.nn.utils.clip_grad_norm_.
      if (finite) await stepper.step(rate, Math.min(1, maxNorm / (norms.get(model)! + 1e-6)));
      else nonFinite.push(...(await model.nonFiniteGradients()));
      await model.zeroGradients();
    }
    const [gradientNorm, criticGradientNorm] = [policy, critic?.model].map((model) => norms.get(model!) ?? null);
    return {
      ...metrics,
      gradientNorm: gradientNorm!,
      criticGradientNorm: criticGradientNorm!,
      nonFinite: finite ? null : nonFinite,
    };
  }

  /** Of stored rows, in one microbatch. Collective. */
  async logprobs({ ids }: { ids: string[] }) {
    return { logprobs: await this.forward(this.state.policy, ids) };
  }

  /** Rank 0 joins as the group's rank 0 and serves its store; others do nothing. */
  async connectEngines(transfer: Omit<ProcessGroupOptions, "rank" | "serveStore">): Promise<undefined> {
    await this.disconnectEngines();
    const joining = { backend: "gloo", ...transfer, rank: 0, serveStore: true } as const;
    if (this.rank === 0) this.transfer = await ProcessGroup.create(joining);
  }

  /** Without a format, as embedded engines receive them. */
  async broadcastWeights({ format }: { format?: Parameters<Model["broadcast"]>[1] }) {
    if (this.rank === 0 && this.transfer === null) throw new RunnerError("no engines are connected");
    return { checksum: await this.state.policy.broadcast(this.transfer, format) };
  }

  async disconnectEngines(): Promise<undefined> {
    this.transfer?.close();
    this.transfer = null;
  }

  /** Of the weights. Collective. */
  async checksum() {
    return { checksum: await this.state.policy.checksum() };
  }

  /** Bytes that tensors hold here, and at most held since the last time. */
  async memory() {
    return memory(true);
  }

  /** From now on, or no more; tells those until now. */
  async recordCollectives({ on }: { on: boolean }) {
    return { collectives: recordCollectives(on) };
  }

  /** A file a model, in an existing directory: what the rank holds now, on the disk once it is written. */
  async saveCheckpoint({ directory }: { directory: string }) {
    const writes: Promise<void>[] = [];
    for (const { optimizer, ...identity } of this.trained()) {
      const save = (path: string) => optimizer.saveShard(path, shardHeader(identity, optimizer.stepCount));
      writes.push((await snapshotShard(shardPath(directory, this.rank, identity.model), identity, save))());
    }
    this.written = Promise.all(writes).then(() => {});
    this.written.catch(() => {}); // `checkpointWritten` says it
    return { file: shardPath(directory, this.rank), stepCount: this.state.optimizer.stepCount };
  }

  /** When it is. Answered out of turn: training goes on meanwhile. */
  async checkpointWritten(): Promise<undefined> {
    await this.written;
  }

  async loadCheckpoint({ directory }: { directory: string }) {
    for (const { optimizer, ...identity } of this.trained()) {
      const { path, offset, stepCount, close } = await openShard(directory, identity);
      await optimizer.loadShard(path, offset).finally(close);
      optimizer.stepCount = stepCount;
    }
    return { stepCount: this.state.optimizer.stepCount };
  }

  /** Rank 0 writes `model.safetensors`, in an existing directory. */
  async exportWeights({ directory }: { directory: string }): Promise<undefined> {
    const { policy, params } = this.state;
    await policy.save(join(directory, "model.safetensors"), exportHeader(params.policy.units));
  }

  /** Rank 0 writes `adapter_model.safetensors` of the policy's adapters. */
  async exportAdapters({ directory }: { directory: string }): Promise<undefined> {
    const { policy, params } = this.state;
    const header = exportHeader(adapterUnits(params.policy.units));
    await policy.save(join(directory, "adapter_model.safetensors"), header, "adapters");
  }

  close(): void {
    this.transfer?.close();
    for (const group of Object.values(this.current?.groups ?? {}).reverse()) group?.close();
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

  private async forward(model: Model, ids: string[], isLive = false): Promise<Float32Array[]> {
    const { policy, critic, loss } = this.state;
    const rows = this.rowsOf(ids);
    const given = rows.length > 0 ? rows : [dummyRow()];
    const { packed } = packRows(given);
    const routes = replayed(given, model === policy && !isLive ? loss.mixture : null);
    const scores: { logp: Tensor; entropy?: Tensor } =
      model === critic?.model
        ? { logp: await model.values(packed, false) }
        : await model.forward({ ...packed, ...routes }, false);
    const values = await scores.logp.data();
    for (const tensor of [scores.logp, scores.entropy]) tensor?.dispose();
    return unpackRows(rows, packed.cu, values);
  }

  /** Where routes are replayed: what sampler and trainer differ by without, of one microbatch. */
  private async measureLive(ids: string[], metrics: UpdateMetrics): Promise<void> {
    const { policy, loss } = this.state;
    if (!loss.mixture?.replaysRoutes) return;
    const live = await this.forward(policy, ids, true);
    const gaps = this.rowsOf(ids).flatMap(({ mask, logprobs }, index) =>
      [...live[index]!].flatMap((logp, t) => (isTrained(mask, t) ? [Math.abs(logp - logprobs[t]!)] : [])),
    );
    addMetrics(metrics, { sums: {}, maxima: {}, means: { logprob_gap_live: [sum(gaps), gaps.length] } });
  }

  /** What a checkpoint has of each model. */
  private trained(): (ShardIdentity & { optimizer: AdamW })[] {
    const { policy, base, optimizer, critic, params } = this.state;
    const { worldSize, mesh } = params;
    const place = { rank: this.rank, worldSize, expertSize: mesh.expertSize };
    const { units, freezeRouter } = params.policy;
    const { shardSize } = policy;
    const own = { model: "policy" as const, ...place, freezeRouter, shardSize, units, base, optimizer };
    if (critic === null) return [own];
    const other = { shardSize: critic.model.shardSize, units: params.critic!.model.units, base: null };
    return [own, { ...own, ...other, model: "critic", optimizer: critic.optimizer }];
  }
}

/** What the ranks compute over, over one store: null where a rank is alone in it. The first serves the store. */
async function createGroups(rank: number, { worldSize, mesh, store }: InitParams): Promise<Groups> {
  const { contextSize, expertSize } = mesh;
  const join = (prefix: string, size: number, place: number) => {
    if (size === 1) return null;
    const serveStore = rank === 0 && prefix === "train";
    return ProcessGroup.create({ ...store, rank: place, worldSize: size, prefix, serveStore });
  };
  const [row, slot] = [Math.floor(rank / expertSize), rank % expertSize];
  return {
    group: await join("train", worldSize, rank),
    contextGroup: await join(`context${Math.floor(rank / contextSize)}`, contextSize, rank % contextSize),
    expertGroup: await join(`expert${row}`, expertSize, slot),
    expertDataGroup: expertSize === 1 ? null : await join(`expert-data${slot}`, worldSize / expertSize, row),
  };
}

async function createModel(spec: ModelSpec, groups: Groups, trainable: boolean): Promise<Model> {
  const { weights, seed, ...options } = spec;
  const model = await Model.create({ ...options, ...groups, trainable });
  // A critic's head is in no file.
  if (weights === null || spec.units.at(-1)!.parameters.some(({ role }) => role === "value")) {
    await model.initialize(seed);
  }
  if (weights !== null) await model.load(weights);
  if (isAdapted(spec)) await model.initialize(seed, "adapters");
  return model;
}

function isAdapted({ units }: ModelSpec): boolean {
  return units.some(({ adapters }) => adapters !== undefined);
}

function createOptimizer(model: Model, { betas: [beta1, beta2], eps, weightDecay }: OptimizerSpec): AdamW {
  return new AdamW(model, { beta1, beta2, eps, weightDecay });
}

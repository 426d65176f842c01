/** What a recipe's engines are, and how weights come to them. */
import { join } from "node:path";
import type { ModelFolder } from "../data/model-folder.ts";
import type { Recipe } from "../recipe/index.ts";
import type { EngineClient } from "./client.ts";
import type { FleetOptions } from "./fleet.ts";
import { attachedEngine, commandEngine, embeddedEngine, type StartEngine } from "./start.ts";
import { BroadcastTransport } from "./transfer/broadcast.ts";
import { Canary, tolerances } from "./transfer/canary.ts";
import { DirectoryTransport } from "./transfer/directory.ts";
import type { SyncRanks, Transport } from "./transfer/transport.ts";
import { vllmCommand } from "./vllm/command.ts";
import { probeVllm } from "./vllm/probe.ts";

export type EngineInit = "weights" | "random";

export function fleetOf(recipe: Recipe, model: string, init: EngineInit): Omit<FleetOptions, "emit"> {
  const { engine, run, vllm } = recipe;
  const isVllm = engine.kind === "vllm";
  return {
    count: engine.count,
    evalEngines: recipe.eval.engines,
    start: startOf(recipe, model, init),
    ...(isVllm && { probe: probeVllm, replicas: vllm.data_parallel_size }),
    watchesLoad: !run.deterministic,
    version: 0,
    maxRestarts: run.max_restarts,
  };
}

function startOf(recipe: Recipe, model: string, init: EngineInit): StartEngine {
  const { kind, urls, start_timeout: seconds } = recipe.engine;
  if (urls.length > 0) return attachedEngine(urls, seconds);
  if (kind === "vllm") return commandEngine(vllmCommand(recipe, model, init), seconds);
  return embeddedEngine(model, embeddedArgs(recipe, init), seconds);
}

function embeddedArgs({ data, engine, run, train }: Recipe, init: EngineInit): string[] {
  const flags = {
    "--init": init,
    "--max-model-len": data.max_len,
    "--dtype": engine.dtype,
    // Alone in its batch a request is computed in the same shapes, whatever else is asked.
    "--max-num-seqs": run.deterministic ? 1 : engine.max_num_seqs,
    ...(run.deterministic && { "--threads": 1 }),
    "--page-size": engine.page_size,
    ...(engine.cache_tokens !== null && { "--cache-tokens": engine.cache_tokens }),
  };
  const words = Object.entries(flags).flatMap(([flag, value]) => [flag, String(value)]);
  return [...words, ...(train.routing_replay ? ["--enable-return-routed-experts"] : [])];
}

/** Of a run in `directory`, whose policy comes from `folder`. */
export function transportOf(
  recipe: Recipe,
  folder: ModelFolder,
  parts: { client: EngineClient; ranks: SyncRanks },
  directory: string,
): Transport {
  const { engine, fsdp, data, vllm } = recipe;
  const { units, config } = folder.decoder;
  const broadcast = { ...parts, units, deadlineSeconds: engine.sync_timeout };
  if (engine.kind === "embedded") return new BroadcastTransport(broadcast);
  const dtype = engine.dtype === "bf16" ? engine.dtype : fsdp.param_dtype;
  const probe = { vocabSize: config.vocabSize, maxLen: data.max_len, tolerance: tolerances[dtype] };
  const canary = new Canary({ ...parts, ...probe, replicas: vllm.data_parallel_size });
  if (vllm.sync_backend === "nccl") {
    const sent = engine.dtype === "bf16" ? "bfloat16" : "float32";
    return new BroadcastTransport({ ...broadcast, vllm: { dtype: sent, canary } });
  }
  return new DirectoryTransport({ ...parts, canary, model: folder.path, directory: join(directory, "weights") });
}

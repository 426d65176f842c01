import { count } from "../arithmetic.ts";
import type { Verb } from "../guardrails/index.ts";
import type { Recipe } from "../schema.ts";
import { deviceOf } from "./devices.ts";
import { enginesOf } from "./layout.ts";

/** Of one process: its node, and its devices there, both from 0. */
export interface Place {
  node: number;
  devices: number[];
}

export type Placement = ReturnType<typeof placementOf>;

/**
 * Ranks by node, neighbours together, so that a group of neighbours (experts, context) lies within a node where it can.
 * Then engines: each on the first node with room for it; one that no node has room for takes nodes of its own. CPU
 * processes share: engines go round.
 */
export function placementOf(recipe: Recipe, verb: Verb) {
  const { actor, launcher, run } = recipe;
  const ranksPerNode = verb === "eval" ? 0 : actor.devices_per_node;
  const device = deviceOf(run.device);
  const engines = enginesOf(recipe, verb === "sft" ? 0 : recipe.engine.count);
  const room = launcher.devices_per_node ?? (device.name === "CPU" ? null : device.perNode);
  const used = Array.from({ length: actor.num_nodes }, () => 0);
  const take = (node: number, size: number): Place => {
    const first = used[node] ?? 0;
    used[node] = first + size;
    return { node, devices: Array.from({ length: size }, (_, index) => first + index) };
  };
  const ranks = Array.from({ length: actor.num_nodes * ranksPerNode }, (_, rank) =>
    take(Math.floor(rank / ranksPerNode), 1),
  );
  const nodeFor = (engine: number, size: number) => {
    if (room === null) return engine % actor.num_nodes;
    const free = used.findIndex((taken) => taken + size <= room);
    return free < 0 ? used.length : free;
  };
  const placed = Array.from({ length: engines.count }, (_, engine) => {
    const place = take(nodeFor(engine, engines.devices), engines.devices);
    // The rest of an engine that is larger than a node.
    for (let left = engines.devices - (room ?? Infinity); left > 0; left -= room!) used.push(room!);
    return place;
  });
  // Devices that some node needs of its own.
  const perNode = Math.min(Math.max(...used), room ?? Infinity);
  return { nodes: used.length, perNode, ranks, engines: placed };
}

/** What runs, on how many nodes. */
export function placementLine(recipe: Recipe, { nodes, ranks, engines }: Placement): string {
  // Their text may hold a secret.
  const unseen = recipe.vllm.extra_args.length > 0 ? " (vllm.extra_args not planned)" : "";
  const sized = engines.map(({ devices }) => count(devices.length, "device"));
  const parts = [
    ...(ranks.length > 0 ? [count(ranks.length, "rank")] : []),
    ...(engines.length > 0 ? [`${count(engines.length, "engine")} of ${sized[0]}${unseen}`] : []),
  ];
  const lack = nodes > 1 && recipe.launcher.kind === "local" ? "; launcher.kind local has one: take slurm or ray" : "";
  return `${parts.join(", ")}, on ${count(nodes, "node")}${lack}`;
}

/** Who is on which node, where there are several: nodes that follow each other with as many of each in one line. */
export function nodeRows({ nodes, ranks, engines }: Placement): [name: string, value: string][] {
  if (nodes === 1) return [];
  const on = (places: Place[], node: number) => places.filter((place) => place.node === node).length;
  const rows: { first: number; last: number; kind: string }[] = [];
  for (let node = 0; node < nodes; node++) {
    const counts = { rank: on(ranks, node), engine: on(engines, node) };
    const words = Object.entries(counts).flatMap(([one, number]) => (number > 0 ? [count(number, one)] : []));
    const kind = words.join(", ") || "the rest of an engine";
    const before = rows.at(-1);
    if (before?.kind === kind) before.last = node;
    else rows.push({ first: node, last: node, kind });
  }
  return rows.map(({ first, last, kind }) =>
    last > first ? [`nodes ${first} to ${last}`, `${kind} each`] : [`node ${first}`, kind],
  );
}

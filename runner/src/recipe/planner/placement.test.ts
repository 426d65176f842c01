import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { readEdited } from "../index.ts";
import { nodeRows, placementOf } from "./placement.ts";

const recipeOf = (sections: object) =>
  readEdited(JSON.stringify({ ...sections }), "/r/recipe.yaml", { environment: {} }).recipe;

const onGpus = (nodes: number, ranks: number, engines: number, tensor: number, perNode: number) =>
  recipeOf({
    actor: { num_nodes: nodes, devices_per_node: ranks },
    engine: { kind: "vllm", count: engines },
    vllm: { tensor_parallel_size: tensor },
    launcher: { kind: "ray", devices_per_node: perNode },
    run: { device: "H100" },
  });

describe("where processes go", () => {
  it("gives every rank and engine its own devices, which their nodes have", () => {
    const [few, some] = [fc.integer({ min: 1, max: 6 }), fc.integer({ min: 1, max: 8 })];
    fc.assert(
      fc.property(few, some, some, some, fc.integer({ min: 0, max: 8 }), (nodes, ranks, engines, tensor, spare) => {
        const perNode = Math.max(ranks, tensor) + spare;
        const placed = placementOf(onGpus(nodes, ranks, engines, tensor, perNode), "run");
        const all = [...placed.ranks, ...placed.engines];
        expect([placed.ranks.length, placed.engines.length]).toEqual([nodes * ranks, engines]);
        expect(placed.engines.every(({ devices }) => devices.length === tensor)).toBe(true);
        const taken = all.flatMap(({ node, devices }) => devices.map((device) => `${node}/${device}`));
        expect(new Set(taken).size).toBe(taken.length);
        expect(Math.max(...all.flatMap(({ devices }) => devices))).toBeLessThan(perNode);
        // No node without a process, and ranks on as many as the recipe says.
        expect([...new Set(all.map(({ node }) => node))].sort((a, b) => a - b)).toEqual(
          Array.from({ length: placed.nodes }, (_, node) => node),
        );
        expect(new Set(placed.ranks.map(({ node }) => node)).size).toBe(nodes);
      }),
    );
  });

  it("keeps groups of neighbours within a node where their size divides a node's ranks", () => {
    for (const [perNode, size] of [
      [8, 8],
      [8, 4],
      [6, 3],
    ] as const) {
      const { ranks } = placementOf(onGpus(4, perNode, 1, 1, 8), "run");
      for (let first = 0; first < ranks.length; first += size) {
        const nodes = ranks.slice(first, first + size).map(({ node }) => node);
        expect(new Set(nodes).size).toBe(1);
      }
    }
  });

  it("lets an engine have nodes of its own where it is larger than one", () => {
    const placed = placementOf(onGpus(1, 8, 2, 12, 8), "run");
    expect([placed.nodes, placed.engines.map(({ node }) => node)]).toEqual([5, [1, 3]]);
    expect(nodeRows(placed)).toEqual([
      ["node 0", "8 ranks"],
      ["node 1", "1 engine"],
      ["node 2", "the rest of an engine"],
      ["node 3", "1 engine"],
      ["node 4", "the rest of an engine"],
    ]);
  });

  it("shares CPUs: engines go round the ranks' nodes", () => {
    const actor = { num_nodes: 2, devices_per_node: 3 };
    const placed = placementOf(recipeOf({ actor, engine: { count: 3 }, launcher: { kind: "slurm" } }), "run");
    expect(placed.ranks.map(({ node }) => node)).toEqual([0, 0, 0, 1, 1, 1]);
    expect(placed.engines.map(({ node }) => node)).toEqual([0, 1, 0]);
    expect(nodeRows(placed)).toEqual([
      ["node 0", "3 ranks, 2 engines"],
      ["node 1", "3 ranks, 1 engine"],
    ]);
  });

  it("has no ranks to evaluate, and no engines to learn from demonstrations", () => {
    const recipe = recipeOf({ actor: { devices_per_node: 2 } });
    expect(placementOf(recipe, "eval")).toMatchObject({ nodes: 1, ranks: [], engines: [{ node: 0, devices: [0] }] });
    expect(placementOf(recipe, "sft").engines).toEqual([]);
  });
});

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import type { ParameterDescription, UnitDescription } from "molt-native";
import { describe, expect, test } from "vitest";
import { openShard, shardHeader, shardPath } from "./shard-file.ts";
import { shardTable } from "./shard-layout.ts";

const parameter = (name: string, shape: number[], decay = true, expert?: number): ParameterDescription => {
  const init = { kind: "ones" as const };
  return { role: name, name, shape, init, decay, ...(expert !== undefined && { expert }) };
};

test("as the native core lays it out, by hand: what decays first, rounded slices, experts by place", () => {
  const experts = ["up", "gate", "down"].flatMap((role) => [0, 1].map((e) => parameter(`${role}${e}`, [2], true, e)));
  const units: UnitDescription[] = [
    { kind: "layer", parameters: [parameter("norm", [3], false), parameter("q", [2, 2])], experts },
  ];
  // q, norm: 7 values in two slices of 4. Of two ranks with a part of the experts each, neither shares its own.
  const at = (rank: number, expertSize: number) => shardTable(units, { rank, worldSize: 2, expertSize });
  expect(at(0, 2)).toEqual([
    ["q", 0, 4, 0],
    ["up0", 0, 2, 4],
    ["gate0", 0, 2, 6],
    ["down0", 0, 2, 8],
  ]);
  expect(at(1, 2)).toEqual([
    ["norm", 0, 3, 0],
    ["up1", 0, 2, 4],
    ["gate1", 0, 2, 6],
    ["down1", 0, 2, 8],
  ]);
  // 12 values of the experts in two slices of 6.
  expect(at(1, 1).slice(1)).toEqual([
    ["gate1", 0, 2, 4],
    ["down0", 0, 2, 6],
    ["down1", 0, 2, 8],
  ]);
});

describe("a frozen router", () => {
  const units: UnitDescription[] = [{ kind: "layer", parameters: [parameter("q", [4]), parameter("router", [6])] }];
  const place = { rank: 1, worldSize: 2, expertSize: 1 };

  test("is in no shard", () => {
    expect(shardTable(units, { ...place, freezeRouter: true })).toEqual([["q", 2, 2, 0]]);
    expect(shardTable(units, place)).toEqual([["router", 1, 5, 0]]);
  });

  test("is not taken for one that a checkpoint has trained", async () => {
    const directory = mkdtempSync(join(tmpdir(), "molt-shard-"));
    const alone = { ...place, rank: 0, worldSize: 1, model: "policy" as const, units, base: null };
    const header = shardHeader({ ...alone, shardSize: 10 }, 3);
    writeFileSync(shardPath(directory, 0), Buffer.concat([header, Buffer.alloc(3 * 4 * 10)]));
    const opened = openShard(directory, { ...alone, freezeRouter: true, shardSize: 4 });
    await expect(opened).rejects.toThrow("the checkpoint has trained router, which would be lost");
    rmSync(directory, { recursive: true });
  });
});

test("adapters alone are held where there are any; a unit without is empty", () => {
  const lora = { scale: 1, parameters: [parameter("a", [5])] };
  const units: UnitDescription[] = [
    { kind: "embedding", parameters: [parameter("embed", [4])], adapters: { scale: 1, parameters: [] } },
    { kind: "layer", parameters: [parameter("q", [4])], adapters: lora },
  ];
  expect(shardTable(units, { rank: 1, worldSize: 2, expertSize: 1 })).toEqual([["a", 3, 2, 0]]);
});

test("whatever the mesh, each value of each parameter lies on exactly one rank, none over another", () => {
  const shapes = fc.record({
    sizes: fc.array(fc.tuple(fc.integer({ min: 1, max: 9 }), fc.boolean()), { minLength: 1, maxLength: 5 }),
    expertWidth: fc.integer({ min: 1, max: 5 }),
    mesh: fc.constantFrom([1, 1], [2, 1], [2, 2], [3, 3], [4, 2], [4, 4], [6, 3], [8, 4]),
  });
  fc.assert(
    fc.property(shapes, ({ sizes, expertWidth, mesh: [worldSize, expertSize] }) => {
      const numExperts = 2 * expertSize!;
      const parameters = sizes.map(([size, decay], index) => parameter(`p${index}`, [size], decay));
      const experts = ["up", "down", "gate"].flatMap((role) =>
        Array.from({ length: numExperts }, (_, e) => parameter(`${role}${e}`, [expertWidth], true, e)),
      );
      const units: UnitDescription[] = [{ kind: "layer", parameters, experts }];
      const held = new Map<string, number>();
      for (let rank = 0; rank < worldSize!; rank++) {
        let end = 0;
        for (const [name, start, count, offset] of shardTable(units, {
          rank,
          worldSize: worldSize!,
          expertSize: expertSize!,
        })) {
          expect(offset).toBeGreaterThanOrEqual(end);
          end = offset + count;
          for (let i = start; i < start + count; i++) {
            held.set(`${name} ${i}`, (held.get(`${name} ${i}`) ?? 0) + 1);
          }
        }
      }
      const values = [...parameters, ...experts].flatMap(({ name, shape }) =>
        Array.from({ length: shape[0]! }, (_, i) => `${name} ${i}`),
      );
      expect([...held.keys()].sort()).toEqual(values.sort());
      expect(new Set(held.values())).toEqual(new Set([1]));
    }),
  );
});

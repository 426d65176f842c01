import { describe, expect, it } from "vitest";
import { RunnerError } from "../src/errors.ts";
import { alternate, attempt, median, type Row, ratios } from "./compare.ts";
import { type Machine, markdown, svg } from "./report.ts";

const row = (fields: Partial<Row>): Row => ({
  group: "decode",
  name: "float32, batch 1",
  peer: "transformers",
  unit: "ms",
  ours: [],
  theirs: [],
  ...fields,
});

const machine: Machine = {
  processor: "Some CPU",
  cores: 2,
  flags: ["avx2"],
  memoryGb: 16,
  load: { start: 0.1, end: 2 },
  versions: { "molt-runner": "0.1.0", torch: "2.13.0" },
  date: "2026-01-01",
};

describe("the figures", () => {
  it("are taken in turn, who goes first changing, after one call each that does not count", async () => {
    const order: string[] = [];
    const side = (name: string) => async () => order.push(name);
    const taken = await alternate(2, side("o"), side("t"));
    expect(order.join("")).toBe("ototto");
    expect(taken).toEqual({ ours: [3, 6], theirs: [4, 5] });
  });

  it("are medians, and ratios pair by pair: theirs by ours", () => {
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 2, 3])).toBe(2.5);
    expect(ratios({ ours: [1, 2, 4], theirs: [2, 6, 4] })).toEqual([2, 3, 1]);
    const page = markdown([row({ ours: [1, 2, 4], theirs: [2, 6, 4] })], machine, "npm run bench");
    expect(page).toContain("| float32, batch 1 | transformers | 2.00 | 4.00 | **2.00** (1.00 to 3.00) |");
  });

  it("of a case that fails say so in its row, and only there", async () => {
    const lines: string[] = [];
    const failed = { group: "decode", name: "batch 64", peer: "transformers", unit: "ms" } as const;
    const rows = await attempt(
      failed,
      (line) => lines.push(line),
      async () => {
        throw new RunnerError("ours ended; its last words:\nout of memory");
      },
    );
    const page = markdown([row({ ours: [1], theirs: [2] }), ...rows], machine, "npm run bench");
    expect(page).toContain("| batch 64 | transformers | | | failed: ours ended; its last words: |");
    expect(page).toContain("| float32, batch 1 | transformers | 1.00 | 2.00 | **2.00** (2.00 to 2.00) |");
    expect(lines).toEqual(["failed: batch 64: ours ended; its last words:\nout of memory"]);
    expect(svg(rows)).not.toContain("batch 64");
  });

  it("carry a warning only from a busy machine", () => {
    const page = (start: number) => markdown([], { ...machine, load: { start, end: 2 } }, "npm run bench");
    expect(page(0.1)).not.toContain("busy");
    expect(page(2.5)).toContain("**The machine was busy**: a load of 2.5 on 2 cores");
  });

  it("are drawn longer the further from 1, and what was not run is not drawn", () => {
    const pair = (ratio: number) => ({ ours: [1], theirs: [ratio] });
    const rows = [row(pair(2)), row(pair(4)), row(pair(0.5)), row({ notRun: "absent" })];
    const widths = [...svg(rows).matchAll(/<rect x="[\d.]+" y="\d+" width="([\d.]+)"/g)].map((match) =>
      Number(match[1]),
    );
    expect(widths).toHaveLength(3);
    const [twice, fourTimes, half] = widths as [number, number, number];
    expect(fourTimes / twice).toBeCloseTo(2, 1);
    expect(half).toBeCloseTo(twice, 0);
  });
});

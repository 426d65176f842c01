import type { Collective } from "molt-native";
import { expect, it } from "vitest";
import { shares, timelineSvg } from "./timeline.ts";

const collective = (start: number, end: number, waitStart: number, waitEnd: number): Collective => {
  return { name: "all-gather", bytes: 1, start, end, waitStart, waitEnd };
};
const step = { start: 1000, end: 1100 };

it("counts what is under way once, and what computing hides of it", () => {
  // 10 to 40 and 30 to 50 are under way, 40 of 100; of them 35 to 45 is waited.
  const collectives = [collective(1010, 1040, 1035, 1040), collective(1030, 1050, 1040, 1045)];
  const { communicating, waiting, hidden } = shares(collectives, step);
  expect([communicating, waiting, hidden]).toEqual([0.4, 0.1, 0.75]);
});

it("has nothing to hide where nothing is sent", () => {
  expect(shares([], step)).toEqual({ communicating: 0, waiting: 0, hidden: 0 });
});

it("draws two lanes a rank, to scale", () => {
  const svg = timelineSvg([
    { title: "dense", timeline: { ...step, ranks: [[collective(1000, 1050, 1025, 1050)], []] } },
  ]);
  expect(svg.match(/rank \d computes/g)).toEqual(["rank 0 computes", "rank 1 computes"]);
  const widths = [...svg.matchAll(/<rect x="150.0" y="\d+" width="([\d.]+)"/g)].map((found) => Number(found[1]));
  expect(widths).toEqual([798, 399, 798]); // rank 0 computes, its collective, rank 1 computes
});

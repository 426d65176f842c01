import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type Drawn, downsample, means, positions } from "./downsample.ts";

const slots = 4;
const value = fc.oneof({ weight: 9, arbitrary: fc.integer({ min: -1000, max: 1000 }) }, fc.constant(Number.NaN));
/** Steps with holes, and their values. */
const series = fc.array(fc.tuple(fc.integer({ min: 1, max: 5 }), value), { maxLength: 400 }).map((rows) => {
  let step = 0;
  const steps = Float64Array.from(rows, ([gap]) => (step += gap));
  return { steps, values: Float64Array.from(rows, ([, of]) => of) };
});
const ranges = fc.record({ from: fc.integer({ min: -10, max: 600 }), size: fc.integer({ min: 1, max: 2000 }) });
const columnCounts = fc.integer({ min: 1, max: 60 });

/** What is drawn in a column, without the slots that nothing is at. */
const drawnIn = (drawn: Drawn[], column: number) =>
  drawn.slice(1 + column * slots, 1 + (column + 1) * slots).filter((one) => one !== undefined);

/** By the definition: every point of the range, in the column that its step is in. */
function pointsByColumn(
  { steps, values }: { steps: Float64Array; values: Float64Array },
  from: number,
  to: number,
  columns: number,
) {
  const found: number[][] = Array.from({ length: columns }, () => []);
  for (const [at, step] of steps.entries()) {
    if (step < from || step > to) continue;
    found[Math.min(columns - 1, Math.floor(((step - from) / (to - from)) * columns))]!.push(values[at]!);
  }
  return found;
}

describe("downsample", () => {
  it("keeps of each pixel column the extremes, the ends and their order, and draws nothing else", () => {
    fc.assert(
      fc.property(series, ranges, columnCounts, (given, { from, size }, columns) => {
        const to = from + size;
        const drawn = downsample(given, { from, to }, columns);
        expect(drawn).toHaveLength(positions({ from, to }, columns).length);
        for (const [column, points] of pointsByColumn(given, from, to, columns).entries()) {
          const seen = drawnIn(drawn, column);
          const [finite, shown] = [points.filter(Number.isFinite), seen.filter((one) => typeof one === "number")];
          expect(seen.length === 0).toBe(points.length === 0);
          expect([Math.min(...shown), Math.max(...shown)]).toEqual([Math.min(...finite), Math.max(...finite)]);
          if (points.length === 0) continue;
          const plain = (one: Drawn) => (Number.isNaN(one) ? null : one);
          expect([seen[0], seen.at(-1)]).toEqual([plain(points[0]), plain(points.at(-1))]);
          let place = -1;
          for (const one of seen) {
            place = points.findIndex((point, at) => at > place && plain(point) === one);
            expect(place).toBeGreaterThanOrEqual(0);
          }
        }
      }),
    );
  });

  it("shows every point where there is room", () => {
    const given = { steps: Float64Array.of(1, 2, 3), values: Float64Array.of(5, Number.NaN, 7) };
    const drawn = downsample(given, { from: 1, to: 3 }, 100);
    expect(drawn.filter((one) => one !== undefined)).toEqual([5, null, 7]);
  });

  it("cuts the line at the range's ends, on the straight line between the points beside them", () => {
    const given = { steps: Float64Array.of(0, 10, 20), values: Float64Array.of(0, 100, 50) };
    const drawn = downsample(given, { from: 5, to: 12 }, 10);
    expect([drawn[0], drawn.at(-1)]).toEqual([50, 90]);
    const gap = downsample({ ...given, values: Float64Array.of(Number.NaN, 1, 2) }, { from: 5, to: 20 }, 10);
    expect([gap[0], gap.at(-1)]).toEqual([null, undefined]);
  });

  it("finds an extreme among very many points, wherever it stands", () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 9999 }), fc.constantFrom(-1, 1), (place, spike) => {
        const steps = Float64Array.from({ length: 10_000 }, (_, at) => at);
        const values = new Float64Array(10_000);
        values[place] = spike;
        const drawn = downsample({ steps, values }, { from: 0, to: 9999 }, 20);
        expect(drawnIn(drawn, Math.min(19, Math.floor((place / 9999) * 20)))).toContain(spike);
      }),
    );
  });
});

it("means: of each column that of its points, so that stacks add up", () => {
  fc.assert(
    fc.property(series, ranges, columnCounts, (given, { from, size }, columns) => {
      const drawn = means(given, { from, to: from + size }, columns);
      for (const [column, points] of pointsByColumn(given, from, from + size, columns).entries()) {
        const mean = points.reduce((sum, one) => sum + one, 0) / points.length;
        const [shown, ...others] = drawnIn(drawn, column);
        expect(others).toEqual([]);
        if (points.length === 0) expect(shown).toBeUndefined();
        else if (Number.isNaN(mean)) expect(shown).toBeNull();
        else expect(shown).toBeCloseTo(mean, 9);
      }
    }),
  );
});

/** What ranks do during a step: which collectives are under way, and when nothing is computed for waiting on them. */
import type { Collective } from "molt-native";

export interface StepTimeline {
  /** Milliseconds since the epoch. */
  start: number;
  end: number;
  /** By rank. */
  ranks: Collective[][];
}

type Span = readonly [start: number, end: number];

/** What of the spans' time is covered at all, counted once. */
function covered(spans: Span[]): number {
  let [total, reached] = [0, -Infinity];
  for (const [start, end] of [...spans].sort((a, b) => a[0] - b[0])) {
    total += Math.max(0, end - Math.max(start, reached));
    reached = Math.max(reached, end);
  }
  return total;
}

const underWay = (collectives: Collective[]) => collectives.map(({ start, end }): Span => [start, end]);
const waits = (collectives: Collective[]) => collectives.map(({ waitStart, waitEnd }): Span => [waitStart, waitEnd]);

/**
 * Of a rank's step: the share in which a collective is under way, the share in which the rank only waits, and how much
 * of the first computing hides. A peer that comes late counts as communication.
 */
export function shares(collectives: Collective[], { start, end }: Pick<StepTimeline, "start" | "end">) {
  const [communicating, waiting] = [covered(underWay(collectives)), covered(waits(collectives))];
  return {
    communicating: communicating / (end - start),
    waiting: waiting / (end - start),
    hidden: communicating === 0 ? 0 : Math.max(0, 1 - waiting / communicating),
  };
}

const colors: Record<string, string> = {
  "all-gather": "#2f6fb3",
  "reduce-scatter": "#c2762b",
  "all-to-all": "#8a4fae",
  "all-reduce": "#b33a4a",
  computing: "#1b7f5c",
};
const layout = { width: 960, left: 150, right: 12, top: 44, lane: 16, gap: 10 };

/** Two lanes a rank: what its thread computes, white where it waits; and the collectives that are under way. */
export function timelineSvg(timelines: { title: string; timeline: StepTimeline }[]): string {
  const { width, left, right, top, lane, gap } = layout;
  let y = top;
  const parts = timelines.flatMap(({ title, timeline: { start, end, ranks } }) => {
    const x = (time: number) => left + ((time - start) / (end - start)) * (width - left - right);
    const bar = ([from, to]: Span, at: number, color: string) => {
      const [begin, long] = [x(from).toFixed(1), Math.max(0.5, x(to) - x(from)).toFixed(1)];
      return `<rect x="${begin}" y="${at}" width="${long}" height="${lane - 4}" fill="${color}"/>`;
    };
    const label = (text: string, at: number) => `<text x="${left - 8}" y="${at + 10}" text-anchor="end">${text}</text>`;
    const head = `<text x="8" y="${y + 4}" font-weight="bold">${title}: ${((end - start) / 1000).toFixed(2)} s</text>`;
    y += gap;
    const lanes = ranks.flatMap((collectives, rank) => {
      const [thread, network] = [y, y + lane];
      y += 2 * lane + gap;
      return [
        label(`rank ${rank} computes`, thread),
        bar([start, end], thread, colors.computing!),
        ...waits(collectives).map((span) => bar(span, thread, "white")),
        label("collectives", network),
        ...collectives.map(({ name, start, end }) => bar([start, end], network, colors[name] ?? "#44505c")),
      ];
    });
    y += gap;
    return [head, ...lanes];
  });
  const legend = Object.entries(colors).map(([name, color], at) => {
    const place = left + at * 130;
    const text = `<text x="${place + 14}" y="27">${name}</text>`;
    return `<rect x="${place}" y="18" width="10" height="10" fill="${color}"/>${text}`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${y}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="white"/>
<text x="8" y="13" font-size="13">One step on two ranks: a gap in computing is a wait</text>
${[...legend, ...parts].join("\n")}
</svg>
`;
}

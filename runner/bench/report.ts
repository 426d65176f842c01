/** The results as a page and a picture. */
import { median, type Pair, type Row, ratios } from "./compare.ts";

export interface Machine {
  processor: string;
  cores: number;
  /** Vector and matrix extensions that matter here. */
  flags: string[];
  memoryGb: number;
  /** Processes running or waiting, mean of the last minute, before and after. */
  load: { start: number; end: number };
  versions: Record<string, string>;
  date: string;
}

interface Group {
  id: string;
  title: string;
  /** What the numbers are. */
  text: string;
}

const groups: Group[] = [
  { id: "decode", title: "Decoding", text: "Milliseconds a token step, all sequences of the batch together." },
  { id: "prompt", title: "Prompts", text: "Milliseconds from the prompts to their first tokens." },
  { id: "train", title: "Training step", text: "Seconds of forward, backward, clipping and AdamW." },
  { id: "memory", title: "Training step, peak memory", text: "GB of the whole process's peak resident set." },
  { id: "rl", title: "A whole step of reinforcement learning", text: "Seconds, every process included." },
  { id: "start", title: "Start-up", text: "Milliseconds of the whole command, beside Node's own." },
];

function number(value: number): string {
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function ratioText(pair: Pair): string {
  const all = ratios(pair);
  return `**${number(median(all))}** (${number(Math.min(...all))} to ${number(Math.max(...all))})`;
}

function tableRow(row: Row, withCpu: boolean): string {
  if (row.notRun !== undefined) return `| ${row.name} | ${row.peer} | | | ${row.notRun} |${withCpu ? " |" : ""}`;
  const cells = [row.name, row.peer, number(median(row.ours)), number(median(row.theirs)), ratioText(row)];
  if (withCpu) cells.push(row.cpu ? number(median(ratios(row.cpu))) : "");
  return `| ${cells.join(" | ")} |`;
}

function table(group: Group, rows: Row[]): string {
  const withCpu = rows.some((row) => row.cpu);
  const heads = ["case", "peer", "ours", "peer's", "ratio", ...(withCpu ? ["ratio of processor time"] : [])];
  const lines = [`| ${heads.join(" | ")} |`, `|${heads.map((_, index) => (index > 1 ? "--:|" : "---|")).join("")}`];
  lines.push(...rows.map((row) => tableRow(row, withCpu)));
  return `## ${group.title}\n\n${group.text}\n\n${lines.join("\n")}\n`;
}

/** Above this many other processes for a core, times say little. */
const busyLoad = 0.25;

export function isBusy({ load, cores }: Pick<Machine, "load" | "cores">): boolean {
  return load.start > busyLoad * cores;
}

export function markdown(rows: Row[], machine: Machine, command: string): string {
  const { processor, cores, flags, memoryGb, load, versions, date } = machine;
  const busy = isBusy(machine)
    ? `
**The machine was busy**: a load of ${load.start.toFixed(1)} on ${cores} cores before the first measurement. The work of
others makes times longer and ratios uncertain (see their spread, and the ratio of processor time, which others disturb
least); measure again on an idle machine.
`
    : "";
  const shown = groups.flatMap((group) => {
    const own = rows.filter((row) => row.group === group.id);
    return own.length > 0 ? [table(group, own)] : [];
  });
  const versionText = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  return `# Speed

Written by \`${command}\`, which installs the peers, makes the models and measures everything in one run: one side,
then the other, in turn, same weights, same thread counts, after one unmeasured call each. Figures are medians; a ratio
is the peer's figure divided by ours, taken pair by pair (median, lowest to highest): above 1 we are faster, or smaller.
${busy}
![ratios](speed.svg)

| machine | |
|---|---|
| processor | ${processor}, ${cores} cores, ${memoryGb.toFixed(0)} GB |
| extensions | ${flags.join(", ") || "none listed"} |
| load average | ${load.start.toFixed(1)} at the start, ${load.end.toFixed(1)} at the end (ours included) |
| versions | ${versionText.join(", ")} |
| date | ${date} |

${shown.join("\n")}${comparison}`;
}

const comparison = `
## What is compared

- Decoding: the native sampler against \`transformers\`' \`generate\` (plain sampling, no end of sequence). Ours also
  gives the log-probability of each sampled token, which training needs; \`generate\` is not asked for it.
- Training: the same mean log-probability loss, norm clipping and fused AdamW. Ours computes log-probabilities and
  entropy in chunks, and layers again in the backward pass or not (\`actor.gradient_checkpoint\` full, the default, or
  none); the peer keeps activations and full logits, its default. bfloat16 is bfloat16 arithmetic over float32 weights
  on both sides (the peer's by autocast).
- A whole step: \`molt-runner run\` with its engine and rank as processes of one thread each, sampling the next batch
  while one is trained (\`train.max_staleness\` 1), against TRL's \`GRPOTrainer\` in one process; same model, reward
  and learning rate; activations kept on both sides.
`;

const colors: Record<string, string> = { faster: "#1b7f5c", slower: "#c2762b" };
const layout = { width: 760, left: 330, right: 60, row: 20, top: 34 };

function escapeXml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

/** One bar a row, on a logarithmic axis around 1. */
export function svg(rows: Row[]): string {
  const bars = rows
    .filter((row) => row.notRun === undefined && row.group !== "start")
    .map((row) => ({ row, ratio: median(ratios(row)) }));
  const reach = Math.max(1, ...bars.map(({ ratio }) => Math.abs(Math.log2(ratio))));
  const low = Math.min(0, ...bars.map(({ ratio }) => Math.log2(ratio)));
  const { width, left, right, row: step, top } = layout;
  const x = (value: number) => left + ((Math.log2(value) - low) / (reach - low)) * (width - left - right);
  const lines = bars.map(({ row, ratio }, index) => {
    const y = top + index * step;
    const [from, to] = [Math.min(x(1), x(ratio)), Math.max(x(1), x(ratio))];
    const title = groups.find(({ id }) => id === row.group)!.title.replace("A whole step of ", "");
    const color = ratio >= 1 ? colors.faster : colors.slower;
    return `<text x="${left - 8}" y="${y + 13}" text-anchor="end">${escapeXml(`${title}: ${row.name}`)}</text>
<rect x="${from.toFixed(1)}" y="${y + 2}" width="${(to - from).toFixed(1)}" height="${step - 6}" fill="${color}"/>
<text x="${(to + 4).toFixed(1)}" y="${y + 13}">${number(ratio)}</text>`;
  });
  const height = top + bars.length * step + 12;
  const viewBox = `0 0 ${width} ${height}`;
  const title = "The peer's time (or memory) divided by ours: above 1, Molt Runner is faster (or smaller)";
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${viewBox}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="white"/>
<text x="8" y="16" font-size="13">${title}</text>
${lines.join("\n")}
<line x1="${x(1)}" x2="${x(1)}" y1="${top - 4}" y2="${height - 8}" stroke="#44505c"/>
</svg>
`;
}

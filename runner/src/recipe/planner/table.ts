import { count } from "../arithmetic.ts";
import type { Plan } from "./index.ts";
import { compact, inBytes } from "./units.ts";

const nameWidth = 18;
/** Breaks lines between words, so that all stay within 100 columns. */
const lines = /\S.{0,79}(?= |$)/g;

type Row = [name: string, value: string];

/** The plan as text. */
export function planTable(plan: Plan): string {
  const { layout, trainer, engine, time, model } = plan;
  const { name, source } = layout.device;
  const mixture = model.experts > 0 ? `, ${model.experts} experts, ${model.expertsPerToken} a token` : "";
  const active = model.experts > 0 ? `, ${compact.format(model.parameters.active)} active` : "";
  const parameters: Row = ["parameters", `${compact.format(model.parameters.total)}${active}`];
  const devices: Row[] = [
    ["device", `${name} (${source})`],
    ["processes", plan.placement],
    ...plan.nodes,
    ...meshRows(plan),
  ];
  const sections: [title: string, rows: Row[]][] = [
    ["model", [["model", `${plan.name} (${model.family}, ${model.layers} layers${mixture})`], parameters]],
    ["devices", devices],
    ["batch", batchRows(plan)],
    [`memory, each ${name} of the trainer`, memoryRows(trainer)],
    [`memory, each ${name} of an engine`, memoryRows(engine)],
    ["traffic of a step, into each rank, and into each engine", sizeRows(time.traffic)],
    ["time of a step, estimated", timeRows(plan)],
  ];
  return sections.flatMap(([title, rows]) => section(title, rows)).join("\n");
}

function section(title: string, rows: Row[]): string[] {
  const shown = rows.flatMap(([name, value]) =>
    value.match(lines)!.map((text, i) => `  ${(i === 0 ? name : "").padEnd(nameWidth)}${text}`),
  );
  return shown.length === 0 ? [] : [title, ...shown];
}

/** How the trainer's ranks share rows, and experts. */
function meshRows({ layout: { ranks, contextRanks, expertRanks }, model }: Plan): Row[] {
  if (ranks < 2) return [];
  const rows = `${count(ranks / contextRanks, "data rank")} x ${contextRanks} of a context group`;
  const experts = `; ${model.experts / expertRanks} of ${model.experts} experts on each of ${expertRanks} ranks`;
  return [["mesh", `weights over ${ranks} ranks; rows over ${rows}${model.experts > 0 ? experts : ""}`]];
}

function batchRows({ arithmetic, layout }: Plan): Row[] {
  const { microbatches, microbatchTokens, meanRow, longestRow, updates, scorings } = layout;
  const cut = `${count(microbatches, "microbatch", "microbatches")} of at most ${microbatchTokens} tokens`;
  const passes = `${count(scorings, "scoring pass", "scoring passes")}, ${count(updates, "update")}`;
  const rows = `${Math.round(meanRow)} tokens in the mean, at most ${longestRow}`;
  return [
    ["arithmetic", arithmetic.line],
    ["rows", rows],
    ["a rank", `${cut}, ${passes}`],
  ];
}

function sizeRows(sizes: Record<string, number>): Row[] {
  return Object.entries(sizes).flatMap(([name, size]): Row[] => (size > 0 ? [[name, inBytes(size)]] : []));
}

function memoryRows(memory: Plan["trainer"] | Plan["engine"]): Row[] {
  if (!memory) return [];
  const rows: Row[] = [
    ...sizeRows(memory.parts),
    ["total", `${inBytes(memory.total)} of ${inBytes(memory.available)}`],
  ];
  if ("offloaded" in memory) return [...rows, ...sizeRows({ "on the host": memory.offloaded })];
  const { mean, longest } = memory.sequences;
  return [...rows, ["sequences", `${mean} at once of the mean row, ${longest} of the longest`]];
}

function timeRows({ time, layout }: Plan): Row[] {
  const seconds = (value: number) => `${Number(value.toPrecision(value < 100 ? 2 : 3))} s`;
  const devices = count(layout.devices, "device");
  const phases = { train: time.train, sample: time.generate, "weight sync": time.sync };
  return [
    ...Object.entries(phases).flatMap(([name, value]): Row[] => (value > 0 ? [[name, seconds(value)]] : [])),
    ["step", `${seconds(time.step)}; ${Number(time.tokensPerSecond.toPrecision(3))} tokens/s for each of ${devices}`],
    ["waits for", time.binding],
  ];
}

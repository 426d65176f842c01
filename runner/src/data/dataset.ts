import { createHash } from "node:crypto";
import { basename, resolve, sep } from "node:path";
import type { Row } from "../agents/types.ts";
import { fileError, formatPosition, messageOf, RunnerError, usageError } from "../errors.ts";
import { indented } from "../lists.ts";
import { formatExtension, type RowProblem, readDataFile } from "./dataset-files.ts";
import { type Columns, toRow } from "./dataset-row.ts";
import type { Mixture } from "./order.ts";

export interface DatasetOptions extends Columns {
  /** Taken of each file, from its start. */
  maxSamples?: number | null;
  weights?: number[] | null;
  /** The path's recipe key, for messages. */
  option?: string;
}

export interface Dataset {
  rows: Row[];
  mixture: Mixture;
  /** sha256 over rows and mixture, by which a checkpoint notices changed data. */
  fingerprint: string;
}

const shownProblems = 10;

/**
 * Rows of JSONL, JSON, CSV and Parquet files. All faults are reported at once, with file and line or row. A row's id is
 * its file's name and its number in it.
 */
export async function readDataset(paths: string | string[], options: DatasetOptions): Promise<Dataset> {
  const files = [paths].flat();
  const twice = files.find((path, index) => files.findIndex((other) => resolve(other) === resolve(path)) < index);
  if (twice !== undefined) throw usageError(`${options.option ?? "data.prompt_dataset"} names ${twice} twice`);
  const names = namesOf(files);
  const read = await Promise.allSettled(files.map((path, index) => readRows(path, names[index]!, options)));
  const errors = read.flatMap((one) => (one.status === "rejected" ? [one.reason] : []));
  if (errors.length > 0) throw together(errors);
  const parts = read.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
  const mixture = { sizes: parts.map(({ length }) => length), weights: options.weights ?? null };
  const rows = parts.flat();
  return { rows, mixture, fingerprint: fingerprintOf(rows, mixture) };
}

/** A file's name without its ending; where two are alike, paths from the files' common folder. */
function namesOf(paths: string[]): string[] {
  const stems = paths.map((path) => basename(path, formatExtension(path)));
  if (new Set(stems).size === stems.length) return stems;
  const parts = paths.map((path) => resolve(path).split(sep));
  const [first] = parts as [string[]];
  const depth = first.findIndex((part, index) => parts.some((other) => other[index] !== part));
  return parts.map((path) => path.slice(depth).join("/"));
}

async function readRows(path: string, name: string, options: DatasetOptions): Promise<Row[]> {
  const option = options.option ?? "data.prompt_dataset";
  const { rows: read, problems: unread } = await readDataFile(path, option);
  const problems = [...unread];
  const rows: Row[] = [];
  for (const { line, number, value } of read.slice(0, options.maxSamples ?? read.length)) {
    try {
      rows.push(toRow(value, `${name}:${number}`, options));
    } catch (error) {
      problems.push({ line, number, message: messageOf(error) });
    }
  }
  if (problems.length > 0) throw unusable(path, problems);
  if (rows.length === 0) throw fileError(path, `${option}: this file holds no row`);
  return rows;
}

function unusable(path: string, problems: RowProblem[]): RunnerError {
  problems.sort((one, other) => one.number - other.number);
  const [first] = problems as [RowProblem];
  const position = { file: path, line: first.line ?? undefined };
  const inRow = ({ line, number, message }: RowProblem) => (line === null ? `row ${number}: ${message}` : message);
  // A key that names no column is one mistake, however many rows.
  if (problems.every(({ message }) => message === first.message)) {
    const more = problems.length > 1 ? `; so in ${problems.length} rows` : "";
    return usageError(`${inRow(first)}${more}`, { position });
  }
  const lines = problems.map(
    (problem) => `${formatPosition({ file: path, line: problem.line ?? undefined })} ${inRow(problem)}`,
  );
  return usageError(`${problems.length} rows cannot be used:${indented(lines, shownProblems)}`, { position });
}

/** One error with all that the user can mend. */
function together(errors: unknown[]): unknown {
  const [first, ...others] = errors.filter((error) => error instanceof RunnerError);
  if (!first || others.length === 0) return errors[0];
  const fix = first.fix ? `\n  fix: ${first.fix}` : "";
  const lines = others.map((error) => `\n${error.format()}`).join("");
  return usageError(`${first.message}${fix}${lines}`, { position: first.position });
}

function fingerprintOf(rows: Row[], mixture: Mixture): string {
  const hash = createHash("sha256");
  for (const { id, fields } of rows) hash.update(`${id} ${JSON.stringify(fields)}\n`);
  if (mixture.weights) hash.update(JSON.stringify(mixture));
  return hash.digest("hex");
}

// What the dashboard and its page say to each other. The page reaches nothing but the extension.
import type { RunState } from "../../runner/src/telemetry/fold.ts";
import type { Difference } from "./differences.ts";
import type { Rows } from "./series.ts";

/** A run as words. */
export interface RunStatus {
  directory: string;
  /** `34/60, reward 0.612, running` */
  label: string;
  /** What does not change with each step: how it ended, or through what it is followed. */
  standing: string;
  alarms: RunState["health"];
}

export type ToPage =
  /** What can be shown, the newest first, and what is. */
  | { type: "runs"; runs: { directory: string; name: string }[]; shown: string[] }
  | { type: "status"; status: RunStatus }
  /** All of a shown run from a step on: what the page has of that is replaced. */
  | { type: "rows"; directory: string; from: number; tables: Rows[] }
  /** Of the shown runs, in their order; or why they cannot be told. */
  | { type: "differences"; differences: Difference[]; problem: string | null };

export type FromPage =
  /** It was loaded and has nothing yet. */
  | { type: "ready" }
  | { type: "show"; directories: string[] }
  | { type: "inspect"; directory: string; step?: number; rolloutId?: string };

/** What a page keeps while it is hidden and over a reload of the window. */
export interface SavedState {
  shown: string[];
  range: { from: number; to: number } | null;
}

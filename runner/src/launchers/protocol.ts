/** Over `ws` in `encoding.ts`'s form: a node says hello with its token, then does what it is told until it is let go. */
import type { ChildOptions } from "./child.ts";

export interface NodeHello {
  token: string;
  host: string;
  cpus: number;
  /** As CUDA_VISIBLE_DEVICES names them. */
  gpus: string[];
}

/** `id`: of a process, or of a question. */
export type NodeRequest =
  | { type: "start"; id: number; options: Omit<ChildOptions, "onLine">; lines: boolean }
  | { type: "stop"; id: number; graceSeconds?: number }
  | { type: "kill"; id: number; signal: NodeJS.Signals }
  | { type: "port"; id: number }
  | { type: "end" };

export type NodeMessage =
  | { type: "line"; id: number; line: string }
  | { type: "died"; id: number; message: string }
  | { type: "stopped"; id: number }
  | { type: "port"; id: number; port: number };

/** The controller asks as often whether a node is there; both give each other up after a longer silence. */
export const heartbeatSeconds = 5;
export const silenceSeconds = 30;

import { Child, type ChildOptions } from "./child.ts";
import { freePort } from "./free-port.ts";

/** A process of a run, on whichever machine: what its starter sees of it. */
export type NodeProcess = Pick<Child, "name" | "died" | "stop" | "kill">;

/** A machine that processes of a run are started on. */
export interface Node {
  readonly name: string;
  /** Where other nodes reach its processes: these listen there alone, or behind a gate that does. */
  readonly address: string;
  /** Where its processes reach the controller. */
  readonly controller: string;
  start(options: ChildOptions): NodeProcess;
  freePort(): Promise<number>;
}

/** One process's place. */
export interface Seat {
  node: Node;
  /** Of the process: the devices that it may use. */
  env?: Record<string, string>;
}

export const loopback = "127.0.0.1";

/** The controller's own machine: nothing of it is reached from outside. */
export const localNode: Node = {
  name: "this machine",
  address: loopback,
  controller: loopback,
  start: (options) => new Child(options),
  freePort: () => freePort(loopback),
};

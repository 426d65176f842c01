import { once } from "node:events";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";
import { DeadlineError, withDeadline } from "../../deadline.ts";
import { messageOf } from "../../errors.ts";
import { RolloutFailure } from "../rollout.ts";

/**
 * The thread's program, as text: the same from source and from a bundle. Compares at three points, in double precision,
 * and large numbers exactly. What the library cannot read, or fails at, is equal to nothing.
 */
const program = `
const { parentPort, workerData } = require("node:worker_threads");
console.log = console.warn = console.error = () => {}; // the library thinks aloud
const near = (a, b) => Math.hypot(a.re - b.re, a.im - b.im) <= 1e-12 * Math.hypot(b.re, b.im) + 1e-15;
function isEqual(sides) {
  if (!sides.every((side) => side.isValid)) return false;
  const names = [...new Set(sides.flatMap((side) => side.unknowns))].sort();
  const isNear = [0.37, 1.91, 2.73].every((start) => {
    const values = Object.fromEntries(names.map((name, index) => [name, start + 0.618 * index]));
    return near(...sides.map((side) => side.subs(values).N()));
  });
  if (!isNear || names.length > 0 || Math.abs(sides[0].N().re) < 1e9) return isNear;
  const [one, other] = sides.map((side) => side.evaluate());
  return one.isSame(other);
}
import(workerData).then(({ ComputeEngine }) => {
  const engine = new ComputeEngine();
  parentPort.on("message", (texts) => {
    engine.pushScope(); // it remembers what it took a name for
    let equal = false;
    try { equal = isEqual(texts.map((text) => engine.parse(text))); } catch {}
    engine.popScope();
    parentPort.postMessage(equal);
  });
  parentPort.postMessage("ready");
});`;
const loadSeconds = 30;
const heapMegabytes = 512;

let thread: Worker | null = null;
let turn: Promise<unknown> = Promise.resolve();

/** Whether two expressions in LaTeX are equal. Rejects when that is not known within `seconds`. */
export function equalByAlgebra(one: string, other: string, seconds: number): Promise<boolean> {
  // One at a time: whoever waits does not pay for what another's answer takes.
  const compared = turn.then(async () => {
    try {
      thread ??= await start();
      thread.postMessage([one, other]);
      return (await withDeadline(once(thread, "message"), seconds, `the algebra of ${one} = ${other}`))[0];
    } catch (error) {
      // The library does not end what it has begun.
      await thread?.terminate();
      thread = null;
      throw new RolloutFailure(error instanceof DeadlineError ? "grader_timeout" : "reward", messageOf(error));
    }
  });
  turn = compared.catch(() => {});
  return compared;
}

async function start(): Promise<Worker> {
  const main = createRequire(import.meta.url).resolve("@cortex-js/compute-engine");
  const worker = new Worker(program, {
    eval: true,
    workerData: pathToFileURL(join(dirname(main), "compute-engine.min.esm.js")).href,
    resourceLimits: { maxOldGenerationSizeMb: heapMegabytes },
  });
  worker.unref();
  await withDeadline(once(worker, "message"), loadSeconds, "the algebra's library to load");
  return worker;
}

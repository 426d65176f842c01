import { once } from "node:events";
import { availableParallelism, hostname } from "node:os";
import WebSocket from "ws";
import { deadlineMs } from "../deadline.ts";
import { pack, unpack } from "../encoding.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { Child } from "./child.ts";
import { visibleGpus } from "./devices.ts";
import { freePort } from "./free-port.ts";
import { type NodeHello, type NodeMessage, type NodeRequest, silenceSeconds } from "./protocol.ts";

const stopSeconds = 5;

/**
 * Does what the controller at `url` asks until it is let go, resolving then. Rejects, with no process left, when the
 * controller is gone, turns it away, or is silent for too long.
 */
export async function joinController(url: string, token: string, ended: AbortSignal): Promise<void> {
  const socket = new WebSocket(url, { perMessageDeflate: false, handshakeTimeout: deadlineMs(silenceSeconds) });
  try {
    await once(socket, "open");
  } catch (error) {
    throw new RunnerError(`the controller at ${url} does not answer: ${messageOf(error)}`);
  }
  const closed = once(socket, "close");
  socket.on("error", () => {}); // its end is what counts
  const children = new Map<number, Child>();
  let end: "let go" | "silent" | null = null;
  const leave = (how: "let go" | "silent") => {
    end ??= how;
    socket.terminate();
  };
  let silence = setTimeout(leave, deadlineMs(silenceSeconds), "silent");
  socket.on("ping", () => {
    clearTimeout(silence);
    silence = setTimeout(leave, deadlineMs(silenceSeconds), "silent");
  });
  const say = (message: NodeMessage) => {
    if (socket.readyState === socket.OPEN) socket.send(pack(message));
  };
  socket.on("message", (bytes: Buffer) => {
    const request = unpack(bytes) as NodeRequest;
    if (request.type === "end") leave("let go");
    else answer(request, children, say);
  });
  ended.addEventListener("abort", () => leave("let go"));
  const hello: NodeHello = { token, host: hostname(), cpus: availableParallelism(), gpus: await visibleGpus() };
  socket.send(pack(hello), () => {});
  await closed;
  clearTimeout(silence);
  await Promise.all([...children.values()].map((child) => child.stop(stopSeconds)));
  if (end === "silent") throw new RunnerError(`the controller at ${url} was silent for ${silenceSeconds} s`);
  if (end === null) throw new RunnerError(`the controller at ${url} closed the connection: its run is over`);
}

type Say = (message: NodeMessage) => void;

function answer(request: Exclude<NodeRequest, { type: "end" }>, children: Map<number, Child>, say: Say): void {
  const { id } = request;
  const child = children.get(id);
  if (request.type === "port") freePort("0.0.0.0").then((port) => say({ type: "port", id, port }));
  else if (request.type === "kill") child?.kill(request.signal);
  else if (request.type === "stop") child?.stop(request.graceSeconds).then(() => say({ type: "stopped", id }));
  else {
    const onLine = request.lines ? (line: string) => say({ type: "line", id, line }) : undefined;
    const started = new Child({ ...request.options, onLine });
    children.set(id, started);
    started.died.catch((error) => say({ type: "died", id, message: messageOf(error) }));
  }
}

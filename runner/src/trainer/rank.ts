import { once } from "node:events";
import WebSocket from "ws";
import { pack, unpack } from "../encoding.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { endWithParent } from "../launchers/child.ts";
import type { Hello, Request, Response } from "./protocol.ts";
import { RankTrainer } from "./rank-trainer.ts";

/** The hidden verb `rank`: trains until the controller closes the connection. MOLT_TOKEN holds the run's token. */
export async function rankCommand(options: { controller: string; rank: number }): Promise<void> {
  const rank = Number(options.rank);
  const trainer = new RankTrainer(rank);
  const socket = new WebSocket(options.controller, { perMessageDeflate: false, maxPayload: 2 ** 31 - 1 });
  endWithParent(() => trainer.close());
  await once(socket, "open");
  socket.on("error", () => {}); // its end is what counts
  const hello: Hello = { rank, token: process.env.MOLT_TOKEN ?? "" };
  socket.send(pack(hello));
  let last = Promise.resolve();
  socket.on("message", (bytes: Buffer) => {
    const request = unpack(bytes) as Request;
    const reply = async () => socket.send(pack(await answer(trainer, request)));
    if (request.method === "checkpointWritten") reply();
    else last = last.then(reply);
  });
  await new Promise((resolve) => socket.once("close", resolve));
  trainer.close();
}

async function answer(trainer: RankTrainer, { id, method, params }: Request): Promise<Response> {
  try {
    const handler = trainer[method] as (params: unknown) => Promise<unknown>;
    return { id, result: await handler.call(trainer, params) };
  } catch (error) {
    return { id, error: error instanceof RunnerError ? error.format() : `${method}: ${messageOf(error)}` };
  }
}

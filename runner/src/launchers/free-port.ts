import { randomInt } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:net";

/** The last of them: bound much later, they look free until then. */
const handedOut: number[] = [];

/** Below those that Linux hands out by itself (from 32,768): nobody is given it before it is used. */
export async function freePort(host = "127.0.0.1"): Promise<number> {
  for (;;) {
    const port = randomInt(20_000, 32_768);
    if (handedOut.includes(port)) continue;
    const server = createServer().listen(port, host);
    const isFree = await once(server, "listening").then(Boolean, () => false);
    if (!isFree) continue;
    handedOut.push(port);
    handedOut.splice(0, handedOut.length - 500);
    return new Promise((resolve) => server.close(() => resolve(port)));
  }
}

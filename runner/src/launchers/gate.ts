/** In front of a program whose routes ask for no key: that listens on its machine alone, we to the others. */
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders, request as open, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { messageOf, usageError } from "../errors.ts";
import { sameSecret } from "../secret.ts";
import { endWithParent } from "./child.ts";
import { loopback } from "./node.ts";

/** Until the run ends. `to`: the program's port; MOLT_API_KEY holds what every request must show. */
export async function gateCommand({ host, to }: { host: string; to: number }): Promise<void> {
  const { MOLT_API_KEY: key } = process.env;
  if (!key) throw usageError("MOLT_API_KEY is not set: nobody could be let through");
  const gate = createGate(to, key).listen(0, host);
  await once(gate, "listening");
  console.log(JSON.stringify({ listening: `http://${host}:${(gate.address() as AddressInfo).port}` }));
  endWithParent(() => gate.closeAllConnections());
  await once(gate, "close");
}

/** Passes on what shows the key, as it is; a caller who leaves ends the request behind, too. */
export function createGate(port: number, key: string): Server {
  const gate = createServer((request, response) => {
    const refuse = (status: number, message: string) => {
      if (response.headersSent) response.destroy();
      else
        response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify({ error: { message } }));
    };
    if (!sameSecret(request.headers.authorization ?? "", `Bearer ${key}`)) {
      return refuse(401, "The run's key was not given: send it as Authorization: Bearer KEY.");
    }
    const { method, url: path } = request;
    // A connection each: one that is kept may be closed behind just when it is used again.
    const place = { host: loopback, port, method, path, headers: passed(request.headers), agent: false };
    const behind = open(place, (answer) => {
      response.writeHead(answer.statusCode!, passed(answer.headers));
      answer.pipe(response);
      answer.once("error", () => response.destroy());
    });
    behind.once("error", (error) => refuse(502, `no answer from what is behind the gate: ${messageOf(error)}`));
    response.once("close", () => behind.destroy());
    request.pipe(behind);
  });
  // Whoever asks has deadlines.
  gate.requestTimeout = 0;
  return gate;
}

/** All but what is said of one connection. */
function passed({ connection: _, "keep-alive": __, ...headers }: IncomingHttpHeaders): IncomingHttpHeaders {
  return headers;
}

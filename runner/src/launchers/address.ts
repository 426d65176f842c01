import { createSocket } from "node:dgram";
import { lookup } from "node:dns/promises";
import { once } from "node:events";
import { messageOf, RunnerError } from "../errors.ts";

/** Of a name or address, as URLs have it; what other names mean is not looked up. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127(\.\d+){3}$/.test(host);
}

/** This machine's address on the way to `host`, of a URL. Connecting a datagram socket sends nothing. */
export async function addressTowards(host: string): Promise<string> {
  try {
    const { address, family } = await lookup(host.replace(/^\[|\]$/g, ""));
    const socket = createSocket(family === 6 ? "udp6" : "udp4");
    try {
      const connected = once(socket, "connect");
      socket.connect(9, address);
      await connected;
      return socket.address().address;
    } finally {
      socket.close();
    }
  } catch (error) {
    throw new RunnerError(`no way leads from this machine to ${host}: ${messageOf(error)}`, { cause: error });
  }
}

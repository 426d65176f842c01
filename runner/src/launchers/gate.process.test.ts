import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { deferred } from "../deferred.ts";
import { createGate } from "./gate.ts";

const loopback = "127.0.0.1";
let behind: Server;
let gate: Server;
let url: string;
const asked: string[] = [];
let answer: (request: IncomingMessage, response: ServerResponse) => void;

async function listen(server: Server): Promise<number> {
  await once(server.listen(0, loopback), "listening");
  return (server.address() as AddressInfo).port;
}

beforeEach(async () => {
  asked.length = 0;
  behind = createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`);
    answer(request, response);
  });
  gate = createGate(await listen(behind), "the run's");
  url = `http://${loopback}:${await listen(gate)}`;
});
afterEach(() => {
  for (const server of [gate, behind]) {
    server.closeAllConnections();
    server.close();
  }
});

const headers = { authorization: "Bearer the run's" };

describe("a gate", () => {
  it.each([undefined, "Bearer another's", "the run's"])("turns away who shows %s, on every path", async (shown) => {
    for (const path of ["/health", "/metrics", "/pause?mode=abort"]) {
      const reply = await fetch(`${url}${path}`, { method: "POST", headers: shown ? { authorization: shown } : {} });
      expect([reply.status, await reply.json()]).toMatchObject([
        401,
        { error: { message: expect.stringMatching(/Authorization: Bearer/) } },
      ]);
    }
    expect(asked).toEqual([]);
  });

  it("passes on the rest as it is, both ways", async () => {
    const bytes = Buffer.alloc(5 * 2 ** 20, "0123456789");
    answer = async (request, response) => {
      const parts = await request.toArray();
      response.writeHead(418, { "x-said": String(request.headers["x-asked"]) }).end(Buffer.concat(parts));
    };
    for (const _ of [1, 2]) {
      const more = { ...headers, "x-asked": "so" };
      const reply = await fetch(`${url}/a/b?c=d%20e`, { method: "PUT", headers: more, body: bytes });
      expect([reply.status, reply.headers.get("x-said")]).toEqual([418, "so"]);
      expect(Buffer.from(await reply.arrayBuffer()).equals(bytes)).toBe(true);
    }
    expect(asked).toEqual(["PUT /a/b?c=d%20e", "PUT /a/b?c=d%20e"]);
  });

  it("passes an answer on while it comes, and ends the request behind when its caller leaves", async () => {
    const ended = deferred();
    answer = (_, response) => {
      response.once("close", ended.resolve);
      response.write("first");
    };
    const left = new AbortController();
    const reply = await fetch(url, { headers, signal: left.signal });
    const { value } = await reply.body!.getReader().read();
    expect(Buffer.from(value!).toString()).toBe("first");
    left.abort();
    await ended.promise;
  });

  it("says that nothing answers behind it; what breaks off there breaks off here", async () => {
    answer = (_, response) => response.write("half", () => response.destroy());
    const reply = await fetch(url, { headers });
    await expect(reply.text()).rejects.toThrow();
    await new Promise((resolve) => behind.close(resolve));
    const none = await fetch(url, { headers });
    expect([none.status, await none.json()]).toMatchObject([
      502,
      { error: { message: expect.stringMatching(/no answer.*ECONNREFUSED/) } },
    ]);
  });
});

import { type AddressInfo, connect, type Socket } from "node:net";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Agent, fetch } from "undici";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { until } from "../../../test/processes.ts";
import { withDeadline } from "../../deadline.ts";
import { type Served, serveScripted } from "../fixtures/served.ts";

let served: Served;
let port: number;
beforeAll(async () => {
  const limits = { bodyBytes: 100_000, sequences: 64, headerSeconds: 3, requestSeconds: 6 };
  served = serveScripted({ limits });
  await served.app.listen({ host: "127.0.0.1", port: 0 });
  port = (served.app.server.address() as AddressInfo).port;
});
afterAll(() => served.app.close());

const sockets: Socket[] = [];
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  // Whatever a client did, nothing of it is left, and the next request is answered.
  await until(
    "requests and connections to be gone",
    async () => served.scheduler.load === 0 && (await connections()) === 0,
  );
  expect(served.sampler.freePages()).toBe(128);
  expect((await post({ token_ids: [1], sampling_params: { max_tokens: 1 } })).status).toBe(200);
});

const connections = () =>
  new Promise<number>((resolve) => served.app.server.getConnections((_, count) => resolve(count)));

// Every request has a connection of its own: one that is kept could bring the answer that it got for being idle.
const dispatcher = new Agent({ pipelining: 0 });

function post(body: object, path = "/inference/v1/generate", signal?: AbortSignal) {
  const headers = { "content-type": "application/json" };
  const request = { method: "POST", body: JSON.stringify(body), headers, signal, dispatcher };
  return fetch(`http://127.0.0.1:${port}${path}`, request);
}

/** A client by hand: what it has been sent, and its end. */
function open() {
  const socket = connect(port, "127.0.0.1");
  sockets.push(socket);
  let received = "";
  socket.setEncoding("utf8").on("data", (text: string) => {
    received += text;
  });
  socket.on("error", () => {});
  const closed = new Promise<string>((resolve) => socket.once("close", () => resolve(received)));
  return { socket, received: () => received, closed: () => withDeadline(closed, 30, "the server to close") };
}

const head = (length: number | string, path = "/inference/v1/generate") =>
  `POST ${path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n` +
  (length === "chunked" ? "Transfer-Encoding: chunked\r\n\r\n" : `Content-Length: ${length}\r\n\r\n`);
const good = JSON.stringify({ token_ids: [1, 2], sampling_params: { max_tokens: 2 } });
const long = { token_ids: [1, 2], sampling_params: { max_tokens: 2000, ignore_eos: true } };

describe("clients that are slow", () => {
  it.each([
    ["in their headers", "POST /inference/v1/generate HTTP/1.1\r\nHost: x\r\nX-Slow: "],
    ["before their first byte", ""],
    ["in their body", `${head(100)}{"token_ids"`],
  ])("%s are cut off", async (_, sent) => {
    const client = open();
    if (sent !== "") client.socket.write(sent);
    // A byte now and then changes nothing.
    const trickle = setInterval(() => sent !== "" && client.socket.write("1"), 200);
    const answer = await client.closed().finally(() => clearInterval(trickle));
    if (sent !== "") expect(answer).toMatch(/^HTTP\/1.1 408 /);
  });
});

describe("clients that send too much, or what is not HTTP", () => {
  it("are refused by the length they announce", async () => {
    const client = open();
    client.socket.write(`${head(10 ** 9)}{`);
    expect(await client.closed()).toMatch(/^HTTP\/1.1 413 [\s\S]*"code":413/);
  });

  it("are refused by the length they reach", async () => {
    const client = open();
    client.socket.write(head("chunked"));
    // Not a byte more than makes it too much: what the server leaves unread resets the connection, and its answer is
    // lost.
    for (let sent = 0; sent <= 100_000; sent += 0x4000) client.socket.write(`4000\r\n${" ".repeat(0x4000)}\r\n`);
    expect(await client.closed()).toMatch(/^HTTP\/1.1 413 /);
  });

  it("get answers up to the garbage between pipelined requests", async () => {
    const client = open();
    client.socket.write(`${head(good.length)}${good}${head(good.length)}${good}`);
    await until("two answers", () => client.received().split("generate-tokens-").length === 3);
    client.socket.write("\0\x01 nonsense \r\n\r\n");
    expect(await client.closed()).toMatch(/HTTP\/1.1 400 /);
  });

  it("are refused with garbage from the start", async () => {
    for (const garbage of ["\0\0\0\0", "GET / HTTP/9.9\r\n\r\n", `G${"E".repeat(100_000)}`]) {
      const client = open();
      client.socket.write(garbage);
      expect(await client.closed()).toMatch(/^(HTTP\/1.1 4\d\d |$)/);
    }
  });
});

describe("clients that go away", () => {
  it("end their request, running or waiting", async () => {
    const controller = new AbortController();
    const left = Array.from({ length: 12 }, () => post(long, undefined, controller.signal).catch(() => "gone"));
    await until("the requests to run", () => served.scheduler.load === 12);
    controller.abort();
    expect(await Promise.all(left)).toEqual(left.map(() => "gone"));
    await until("the requests to end", () => served.scheduler.load === 0);
  });

  it.each(["/inference/v1/generate", "/v1/completions", "/v1/chat/completions"])(
    "end their stream of %s",
    async (path) => {
      const text = { prompt: "a", messages: undefined, max_tokens: 1900, ignore_eos: true };
      const body = {
        "/inference/v1/generate": long,
        "/v1/completions": text,
        "/v1/chat/completions": { ...text, prompt: undefined, messages: [{ role: "user", content: "a" }], n: 3 },
      }[path]!;
      const response = await post({ ...body, stream: true }, path);
      const reader = response.body!.getReader();
      for (let chunk = 0; chunk < 3; chunk++) expect((await reader.read()).done).toBe(false);
      expect(served.scheduler.load).toBeGreaterThan(0);
      await reader.cancel();
      await until("the stream to end", () => served.scheduler.load === 0);
    },
  );

  it("in the middle of a body leave nothing", async () => {
    const client = open();
    client.socket.write(`${head(good.length)}${good.slice(0, 10)}`);
    await until("the connection", async () => (await connections()) === 1);
    client.socket.destroy();
    await until("the connection to be gone", async () => (await connections()) === 0);
  });
});

it("keeps its memory through all of this, over and over", async () => {
  setFlagsFromString("--expose_gc");
  const collect = runInNewContext("gc") as () => void;
  const round = async () => {
    const client = open();
    client.socket.write(`${head(50)}{"token`);
    const controller = new AbortController();
    const leaving = post({ ...long, stream: true }, undefined, controller.signal).then((response) => response.text());
    const answers = [
      post({ token_ids: "x" }),
      post({ prompt: "one two", max_tokens: 4, n: 4, stop: ["q"], stream: true }, "/v1/completions"),
      post({ token_ids: Array(100).fill(5), sampling_params: { max_tokens: 3, n: 8, prompt_logprobs: 0 } }),
    ];
    for (const answer of answers) await (await answer).arrayBuffer();
    controller.abort();
    await leaving.catch(() => {});
    client.socket.destroy();
    sockets.splice(0);
  };
  const settle = async (rounds: number) => {
    for (let index = 0; index < rounds; index++) await round();
    await until("the load to be gone", async () => served.scheduler.load === 0 && (await connections()) === 0);
    collect();
    return process.memoryUsage().heapUsed;
  };
  await settle(40);
  const before = await settle(20);
  const after = await settle(100);
  // 400 requests that kept anything of their tokens, texts or sockets would hold more.
  expect(after - before).toBeLessThan(2 * 2 ** 20);
});

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { withDeadline } from "../deadline.ts";
import { EngineClient, EngineError, keepPartial } from "./client.ts";

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

let server: Server;
let url: string;
let handler: Handler;
let client: EngineClient;

beforeEach(async () => {
  server = createServer((request, response) => {
    request.resume();
    handler(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  client = new EngineClient();
});
afterEach(async () => {
  await client.close();
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 4, stopTokenIds: [], seed: 1 };
const request = { requestId: "r7", tokenIds: [1, 2], version: 12, sampling };
const generate = (options = {}) => client.generate(url, request, { timeoutSeconds: 20, ...options });

const answer = (choice: object) => JSON.stringify({ choices: [{ token_ids: [5], finish_reason: "stop", ...choice }] });
const logprobs = { content: [{ token_id: 5, logprob: -1 }] };

describe("generate", () => {
  const spans = (version: string) => ({ logprobs, weight_versions: [{ version, start: 0, end: 1 }] });

  it("takes the lease's version, with which the engine's own spans must agree", async () => {
    for (const choice of [{ logprobs }, spans("12")]) {
      handler = (_, response) => response.end(answer(choice));
      expect(await generate()).toEqual({ tokenIds: [5], logprobs: [-1], versions: [12], stop: "stop" });
    }
    handler = (_, response) => response.end(answer(spans("11")));
    await expect(generate()).rejects.toThrow("a token of version 11 in the engine's answer to a lease of version 12");
  });

  it("shows the run's key, as vLLM asks for it", async () => {
    vi.stubEnv("MOLT_API_KEY", "of-the-run");
    const withKey = new EngineClient();
    vi.unstubAllEnvs();
    const shown: unknown[] = [];
    handler = ({ headers }, response) => {
      shown.push(headers.authorization);
      response.end(answer({ logprobs }));
    };
    await withKey.generate(url, request, { timeoutSeconds: 20 });
    await generate();
    expect(shown).toEqual(["Bearer of-the-run", undefined]);
    await withKey.close();
  });

  it("goes to the lease's replica, which vLLM is told by a header", async () => {
    const told: unknown[] = [];
    handler = ({ headers }, response) => {
      told.push([headers["x-data-parallel-rank"], headers["content-type"]]);
      response.end(answer({ logprobs }));
    };
    await client.generate(url, { ...request, replica: 3 }, { timeoutSeconds: 20 });
    await generate();
    expect(told).toEqual([
      ["3", "application/json"],
      [undefined, "application/json"],
    ]);
  });

  it("takes the engine's spans where weights may change under the lease, and needs them", async () => {
    const changing = { ...request, version: null };
    handler = (_, response) => response.end(answer(spans("11")));
    expect((await client.generate(url, changing, { timeoutSeconds: 20 })).versions).toEqual([11]);
    handler = (_, response) => response.end(answer({ logprobs }));
    await expect(client.generate(url, changing, { timeoutSeconds: 20 })).rejects.toThrow("no weight_versions");
  });

  it("keeps what was sampled when the request is aborted so, however early", async () => {
    const asked: string[] = [];
    let finish = () => {};
    handler = (incoming, response) => {
      const partial = () => response.end(answer({ finish_reason: "abort", logprobs }));
      if (incoming.url === "/inference/v1/generate") finish = partial;
      else incoming.on("data", (body) => asked.push(String(body)));
      if (incoming.url === "/abort_requests") response.end('{"aborted": 0}');
      if (asked.length === 2) finish();
    };
    const partial = await generate({ signal: AbortSignal.abort(keepPartial) });
    expect(partial).toEqual({ tokenIds: [5], logprobs: [-1], versions: [12], stop: "abort" });
    expect(asked[0]).toBe('{"request_ids":["generate-tokens-r7"]}');
  });

  it("names the engine and the request when the answer cannot be data", async () => {
    handler = (_, response) => response.end(answer({ logprobs: { content: [{ token_id: 5, logprob: -9999 }] } }));
    await expect(generate()).rejects.toThrow(`engine ${url}: request r7: the engine's answer has the log-probability`);
  });

  it("carries the status and the server's own message", async () => {
    handler = (_, response) => {
      response.statusCode = 500;
      response.end('{"error": {"message": "CUDA out of memory", "code": 500}}');
    };
    const error = await generate().catch((reason) => reason);
    expect(error).toBeInstanceOf(EngineError);
    expect(error.message).toBe(`engine ${url}: request r7: HTTP 500: CUDA out of memory`);
  });

  it("quotes an error that is not vLLM's", async () => {
    handler = (_, response) => {
      response.statusCode = 502;
      response.end("<html>Bad Gateway</html>");
    };
    await expect(generate()).rejects.toThrow("HTTP 502: <html>Bad Gateway</html>");
  });

  it.each<[string, Handler]>([
    ["stays silent", () => {}],
    ["stops amid its answer", (_, response) => void response.write('{"choices": [')],
  ])("gives up on an engine that %s, and says what it waited for", async (_, silent) => {
    handler = silent;
    const late = generate({ timeoutSeconds: 0.2 });
    await expect(late).rejects.toThrow(`waited 0.2 s for engine ${url} to answer request r7`);
  });

  it.each<[string, Handler]>([
    ["drops the connection", (_, response) => void response.destroy()],
    ["drops it amid its answer", (_, response) => void response.write('{"choices"', () => response.destroy())],
    ["answers no JSON", (_, response) => void response.end("{")],
  ])("fails when the engine %s", async (_, dropping) => {
    handler = dropping;
    await expect(generate()).rejects.toBeInstanceOf(EngineError);
  });

  it("closes the connection on abort, so that the engine notices", async () => {
    const controller = new AbortController();
    const closed = new Promise<void>((resolve) => {
      handler = (_, response) => {
        response.once("close", resolve);
        controller.abort(new Error("the turn timed out"));
      };
    });
    await expect(generate({ signal: controller.signal })).rejects.toThrow("the turn timed out");
    await withDeadline(closed, 10, "the connection to close");
  });

  it("fails when nobody listens", async () => {
    await new Promise((resolve) => server.close(resolve));
    await expect(generate()).rejects.toThrow("ECONNREFUSED");
  });
});

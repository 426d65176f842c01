import fc from "fast-check";
import { afterAll, describe, expect, it } from "vitest";
import { serveScripted } from "../fixtures/served.ts";

const { app, sampler, scheduler } = serveScripted({}, 160);
afterAll(() => app.close());

const sampling = {
  temperature: 1,
  top_p: 1,
  top_k: 0,
  max_tokens: 3,
  seed: 1,
  n: 1,
  stop: ["zz"],
  stop_token_ids: [2],
  ignore_eos: false,
  include_stop_str_in_output: false,
  skip_special_tokens: true,
  prompt_logprobs: 0,
  min_p: 0,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
  min_tokens: 0,
  logit_bias: null,
  bad_words: [],
  allowed_token_ids: null,
  structured_outputs: null,
  thinking_token_budget: null,
};
const openAi = {
  ...sampling,
  prompt_logprobs: null,
  model: "m",
  stream: false,
  stream_options: null,
  return_token_ids: true,
  cache_salt: "s",
  priority: 0,
  response_format: { type: "text" },
  user: "u",
};
/** A request of each route with every field that it reads. */
const bodies: Record<string, Record<string, unknown>> = {
  "/inference/v1/generate": {
    token_ids: [1, 2, 3],
    sampling_params: { ...sampling, logprobs: 0, routed_experts_prompt_start: 0 },
    request_id: "r",
    model: "m",
    stream: false,
    stream_options: null,
    cache_salt: "s",
    output_mode: "text",
    return_token_ids: true,
    priority: 0,
    features: null,
  },
  "/v1/completions": { ...openAi, prompt: "one two", logprobs: 0, echo: false, best_of: 1 },
  "/v1/chat/completions": {
    ...openAi,
    messages: [
      { role: "user", content: [{ type: "text", text: "a" }] },
      { role: "assistant", content: null, tool_calls: [{ id: "c", function: { name: "f", arguments: "{}" } }] },
      { role: "tool", content: "b", tool_call_id: "c" },
    ],
    max_completion_tokens: 3,
    logprobs: true,
    top_logprobs: 0,
    tools: [{ type: "function", function: { name: "f", parameters: {} } }],
    tool_choice: "none",
    add_generation_prompt: true,
  },
  "/tokenize": { prompt: "one", add_special_tokens: true, return_token_strs: true },
  "/detokenize": { tokens: [1, 2, 3] },
};
const routes = Object.keys(bodies);

async function post(url: string, payload: string, headers: Record<string, string> = {}) {
  const all = { "content-type": "application/json", ...headers };
  return app.inject({ method: "POST", url, payload, headers: all });
}

/** Whatever it was sent, the server has answered, holds nothing, and answers the next one. */
async function expectSound(
  url: string,
  payload: string,
  { statusCode, body, headers }: Awaited<ReturnType<typeof post>>,
) {
  const what = `${url} ${payload.slice(0, 300)} -> ${statusCode} ${body.slice(0, 300)}`;
  expect([200, 400, 404, 413, 415], what).toContain(statusCode);
  if (statusCode !== 200) expect(JSON.parse(body).error, what).toMatchObject({ message: expect.any(String) });
  else if (headers["content-type"] === "application/json") JSON.parse(body);
  expect([scheduler.load, sampler.freePages()], what).toEqual([0, 128]);
  const next = await app.inject({
    method: "POST",
    url: routes[0]!,
    payload: { token_ids: [1], sampling_params: { max_tokens: 1 } },
  });
  expect(next.statusCode, what).toBe(200);
}

/** Every place in a value, as a path. */
function* places(value: unknown, path: string[] = []): Generator<string[]> {
  if (path.length > 0) yield path;
  if (typeof value !== "object" || value === null) return;
  for (const [key, item] of Object.entries(value)) yield* places(item, [...path, key]);
}

function replaced(value: unknown, [key, ...rest]: string[], by: unknown): unknown {
  if (key === undefined) return by;
  const copy = Array.isArray(value) ? [...value] : { ...(value as object) };
  (copy as Record<string, unknown>)[key] = replaced((value as Record<string, unknown>)[key], rest, by);
  return copy;
}

const odd = [null, true, -1, 0, 1.5, 2 ** 53, 1e308, "", "a", "\ud800", [], [null], [[]], ["a"], [-1], {}, { a: 1 }];

describe.each(routes)("%s", (url) => {
  it("answers its whole request", async () => {
    expect((await post(url, JSON.stringify(bodies[url]))).statusCode).toBe(200);
  });

  it("stands any odd value in any place", async () => {
    for (const path of places(bodies[url])) {
      for (const value of odd) {
        const payload = JSON.stringify(replaced(bodies[url], path, value));
        await expectSound(url, payload, await post(url, payload));
      }
    }
  });

  it("stands any values in any places, streamed or not", async () => {
    const changes = fc.array(fc.tuple(fc.constantFrom(...places(bodies[url])), fc.jsonValue({ maxDepth: 3 })), {
      minLength: 1,
      maxLength: 4,
    });
    await fc.assert(
      fc.asyncProperty(changes, fc.boolean(), async (list, stream) => {
        let body: unknown = { ...bodies[url], ...(stream && "stream" in bodies[url]! ? { stream } : {}) };
        for (const [path, value] of list) {
          try {
            body = replaced(body, path, value);
          } catch {
            // An earlier change has taken the place away.
          }
        }
        const payload = JSON.stringify(body);
        await expectSound(url, payload, await post(url, payload));
      }),
      { numRuns: 60 },
    );
  });

  it("stands text that is no JSON, other types and cut bodies", async () => {
    const whole = JSON.stringify(bodies[url]);
    const cut = fc.nat(whole.length).map((length) => whole.slice(0, length));
    const noise = fc.tuple(fc.nat(whole.length), fc.string({ unit: "binary", maxLength: 5 })).map(([at, text]) => {
      return whole.slice(0, at) + text + whole.slice(at + 1);
    });
    const types = fc.constantFrom("application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense");
    await fc.assert(
      fc.asyncProperty(fc.oneof(cut, noise, fc.json(), fc.string()), types, async (payload, type) => {
        await expectSound(url, payload, await post(url, payload, { "content-type": type }));
      }),
      { numRuns: 60 },
    );
  });
});

it.each(["/pause", "/resume", "/abort_requests", "/update_weights", "/finish_weight_update", "/update_weight_version"])(
  "%s stands any body",
  async (url) => {
    await fc.assert(
      fc.asyncProperty(fc.jsonValue(), async (value) => {
        const { statusCode } = await post(url, JSON.stringify(value));
        expect([200, 400, 409]).toContain(statusCode);
        scheduler.resume();
      }),
      { numRuns: 50 },
    );
    expect(scheduler.load).toBe(0);
  },
);

import { readFileSync } from "node:fs";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { events, type Served, script, serveScripted, tokenizer } from "../fixtures/served.ts";

const recorded = JSON.parse(readFileSync(new URL("../fixtures/vllm-0.32.json", import.meta.url), "utf8"));

let served: Served;
beforeEach(() => {
  served = serveScripted();
});
afterEach(() => served.app.close());

async function post(url: string, body: unknown) {
  const response = await served.app.inject({ method: "POST", url, payload: body as object });
  return { status: response.statusCode, body: response.json(), headers: response.headers };
}

const chat = (more: object = {}) =>
  post("/v1/chat/completions", { messages: [{ role: "user", content: "hi" }], max_tokens: 4, seed: 1, ...more });
const complete = (more: object = {}) => post("/v1/completions", { prompt: [1, 2, 3], max_tokens: 4, seed: 1, ...more });

async function stream(url: string, body: object) {
  const response = await served.app.inject({ method: "POST", url, payload: { ...body, stream: true } });
  expect(response.headers["content-type"]).toBe("text/event-stream; charset=utf-8");
  const data = events(response.payload);
  expect(data.at(-1)).toBe("[DONE]");
  return data.slice(0, -1).map((text) => JSON.parse(text));
}

/** Without what differs between any two answers, and ranks, which the sampler does not give. */
function settled(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(settled);
  if (typeof value !== "object" || value === null) return value;
  const changing = ["id", "request_id", "created", "system_fingerprint", "rank"];
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, changing.includes(key) || settled(item)]));
}

interface Logprobs {
  content?: { logprob: number }[];
  token_logprobs?: number[];
}

/** Of what is settled, what says something: the text routes leave out what would always be null. */
function said(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(said);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).filter(([key, item]) => item !== null && key !== "system_fingerprint");
  return Object.fromEntries(entries.map(([key, item]) => [key, said(item)]));
}

/** Makes the sampler give the recorded answer's tokens. */
function replay(choices: { token_ids: number[]; logprobs: Logprobs | null }[]) {
  const outputs = choices.map(({ token_ids, logprobs }) => ({
    tokens: token_ids,
    logprobs: logprobs?.token_logprobs ?? logprobs?.content?.map(({ logprob }) => logprob),
  }));
  script(served.sampler, outputs);
}

describe("against the recorded answers of vLLM 0.32, given its tokens", () => {
  it.each(["generate_text", "generate"])("answers %s the same: text, keys and their order", async (name) => {
    const { request, status, response } = recorded[name];
    replay(response.choices);
    const answer = await post(request.path, request.body);
    expect(answer.status).toBe(status);
    expect(JSON.stringify(settled(answer.body))).toBe(JSON.stringify(settled(response)));
  });

  it("answers chat_top0 the same: text, token texts, bytes, ids, usage", async () => {
    const { request, response } = recorded.chat_top0;
    replay(response.choices);
    const answer = await post(request.path, request.body);
    expect(said(settled(answer.body))).toEqual(said(settled(response)));
  });

  it.each([0, 1])("answers prompt %i of completions_batch the same: text, token texts, offsets, ids", async (at) => {
    const { request, response } = recorded.completions_batch;
    const prompt = request.body.prompt[at];
    const choices = response.choices.slice(2 * at, 2 * at + 2).map((choice: object, index: number) => {
      return { ...choice, index };
    });
    const usage = { prompt_tokens: prompt.length, completion_tokens: 4, total_tokens: prompt.length + 4 };
    replay(choices);
    const answer = await post(request.path, { ...request.body, prompt });
    expect(said(settled(answer.body))).toEqual(said(settled({ ...response, choices, usage })));
  });

  it("answers generate_prompt_logprobs the same", async () => {
    const { request, response } = recorded.generate_prompt_logprobs;
    replay(response.choices);
    const step = served.sampler.step.bind(served.sampler);
    const scores = response.prompt_logprobs.map((entry: Record<string, { logprob: number }> | null) =>
      entry === null ? Number.NaN : Object.values(entry)[0]!.logprob,
    );
    served.sampler.step = async (batch) => {
      const result = await step(batch);
      if (result.promptLogprobs[0]) result.promptLogprobs[0] = Float32Array.from(scores);
      return result;
    };
    const answer = await post(request.path, request.body);
    expect(JSON.stringify(settled(answer.body))).toBe(JSON.stringify(settled(response)));
  });

  it("streams generate_stream in the same events", async () => {
    const { request, response } = recorded.generate_stream;
    const chunks = events(response)
      .slice(0, -1)
      .map((text) => JSON.parse(text));
    const tokens = chunks.flatMap(({ choices }) => choices).flatMap(({ token_ids }) => token_ids);
    const logprobs = chunks.flatMap(({ choices }) => choices).flatMap((choice) => choice.logprobs.content[0].logprob);
    script(served.sampler, [{ tokens, logprobs }]);
    const answer = await stream(request.path, request.body);
    expect(JSON.stringify(settled(answer))).toBe(JSON.stringify(settled(chunks)));
  });

  it.each(["tokenize_messages", "tokenize_prompt", "detokenize"])("answers %s to the letter", async (name) => {
    const { request, response } = recorded[name];
    expect((await post(request.path, request.body)).body).toEqual(response);
  });
});

describe("/v1/chat/completions", () => {
  it("shows the template messages and tools", async () => {
    const tools = [{ type: "function", function: { name: "add", parameters: { type: "object" } } }];
    const messages = [
      {
        role: "system",
        content: [
          { type: "text", text: "Be" },
          { type: "text", text: "brief." },
        ],
      },
      { role: "user", content: "2+3?" },
      {
        role: "assistant",
        content: null,
        tool_calls: [{ id: "1", function: { name: "add", arguments: '{"a": 1.0}' } }],
      },
      { role: "tool", tool_call_id: "1", content: "5" },
    ];
    const { body } = await chat({ messages, tools, return_token_ids: true });
    const wanted = [{ role: "system" as const, content: "Be\nbrief." }, ...messages.slice(1)];
    const expected = tokenizer.renderChat(wanted as never, { tools, addGenerationPrompt: true });
    expect(await tokenizer.decode(body.prompt_token_ids)).toBe(expected);
    expect(expected).toContain('"arguments": {"a": 1.0}');
    const hidden = (await chat({ messages, tools, tool_choice: "none", return_token_ids: true })).body;
    const without = tokenizer.renderChat(wanted as never, { addGenerationPrompt: true });
    expect(await tokenizer.decode(hidden.prompt_token_ids)).toBe(without);
  });

  it("ends with the template's own closer, which is no text and no stop reason", async () => {
    script(served.sampler, [{ tokens: [...(await tokenizer.encode("hello")), 2, 67, 67] }]);
    const { choices, usage } = (await chat({ max_tokens: 20 })).body;
    expect(choices[0]).toMatchObject({ finish_reason: "stop", stop_reason: null, message: { content: "hello" } });
    expect(usage.completion_tokens).toBe((await tokenizer.encode("hello")).length + 1);
  });

  it("stops at a string, across tokens, and says which", async () => {
    const tokens = await tokenizer.encode("one two three four");
    script(served.sampler, [{ tokens }, { tokens }]);
    const { choices } = (await chat({ max_tokens: 20, n: 2, stop: ["nine", "o th"], return_token_ids: true })).body;
    for (const choice of choices) {
      expect(choice).toMatchObject({ finish_reason: "stop", stop_reason: "o th", message: { content: "one tw" } });
      // Not a token further than the one that completes the string.
      const kept = await tokenizer.decode(choice.token_ids);
      expect(kept.includes("o th")).toBe(true);
      expect((await tokenizer.decode(choice.token_ids.slice(0, -1))).includes("o th")).toBe(false);
    }
    expect(served.scheduler.load).toBe(0);
  });

  it.each([
    ["/v1/chat/completions", { messages: [{ role: "user", content: "hi" }], stop: ["o th"], max_tokens: 20 }],
    ["/v1/completions", { prompt: [1, 2, 3], stop: ["o th"], max_tokens: 20 }],
    [
      "/inference/v1/generate",
      { token_ids: [1, 2, 3], output_mode: "text", sampling_params: { stop: ["o th"], max_tokens: 20 } },
    ],
  ])("streams of %s show nothing of a stop string, and end once", async (url, body) => {
    script(served.sampler, [{ tokens: await tokenizer.encode("one two three four") }]);
    const choices = (await stream(url, body)).flatMap((chunk) => chunk.choices);
    expect(choices.map(({ text, delta }) => text ?? delta?.content).join("")).toBe("one tw");
    expect(choices.flatMap(({ finish_reason }) => finish_reason ?? [])).toEqual(["stop"]);
    expect(choices.at(-1)).toMatchObject({ finish_reason: "stop", stop_reason: "o th" });
  });

  it("gives n answers under n seeds, the first one the same as alone", async () => {
    const one = (await chat()).body.choices[0].message.content;
    const many = (await chat({ n: 4 })).body.choices;
    expect(many.map(({ index }: { index: number }) => index)).toEqual([0, 1, 2, 3]);
    expect(many[0].message.content).toBe(one);
    expect(new Set(many.map(({ message }: { message: { content: string } }) => message.content)).size).toBe(4);
  });

  it("streams the role, then the text, then why it ended and the usage: the same as unstreamed", async () => {
    const options = { stream_options: { include_usage: true }, return_token_ids: true, logprobs: true, n: 2 };
    const whole = (await chat({ ...options, stream_options: undefined })).body;
    const body = { messages: [{ role: "user", content: "hi" }], max_tokens: 4, seed: 1, ...options };
    const chunks = await stream("/v1/chat/completions", body);
    expect(chunks.slice(0, 2).map(({ choices }) => choices[0].delta)).toEqual(
      Array(2).fill({ role: "assistant", content: "" }),
    );
    expect(chunks[0].prompt_token_ids).toEqual(whole.prompt_token_ids);
    for (const { index, message, finish_reason, token_ids, logprobs } of whole.choices) {
      const mine = chunks.flatMap(({ choices }) => choices).filter((choice) => choice.index === index);
      expect(mine.map(({ delta }) => delta.content).join("")).toBe(message.content);
      expect(mine.flatMap((choice) => choice.token_ids ?? [])).toEqual(token_ids);
      expect(mine.flatMap((choice) => choice.logprobs?.content ?? [])).toEqual(logprobs.content);
      expect(mine.flatMap((choice) => choice.finish_reason ?? [])).toEqual([finish_reason]);
      expect(mine.at(-1)!.finish_reason).toBe(finish_reason);
    }
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: 8 } });
    expect(new Set(chunks.map(({ id, object }) => `${id} ${object}`)).size).toBe(1);
    expect(chunks[0].object).toBe("chat.completion.chunk");
  });

  it.each([
    [{ top_logprobs: 2 }, "only the sampled token has a log-probability"],
    [{ response_format: { type: "json_object" } }, "output is not constrained"],
    [{ echo: true }, "only what is sampled is answered"],
    [{ logit_bias: { 3: 1 } }, "the embedded engine does not sample with it"],
    [{ presence_penalty: 0.5 }, "the embedded engine does not sample with it"],
    [{ min_p: 0.1 }, "the embedded engine does not sample with it"],
    [{ chat_template_kwargs: { enable_thinking: false } }, "the folder's own template holds"],
    [{ parallel_tool_calls: false }, "calls come back as text"],
    [{ prompt_logprobs: 0 }, "/inference/v1/generate has them"],
    [{ return_tokens_as_token_ids: true }, "the embedded engine does not know the field"],
    [JSON.parse('{"__proto__x": 1}'), "the embedded engine does not know the field"],
    [{ constructor: 1 }, "the embedded engine does not know the field"],
  ])("refuses %j by name", async (more, why) => {
    const { status, body } = await chat(more);
    const [name] = Object.keys(more);
    const error = { message: `${name} is not supported: ${why}.`, type: "BadRequestError", param: name, code: 400 };
    expect([status, body.error]).toEqual([400, error]);
    expect(served.sampler.steps).toBe(0);
  });

  it.each([
    [{ messages: [] }, "messages must be a list of at least one message."],
    [{ messages: [{ role: "robot", content: "a" }] }, "messages.0.role must be system, user, assistant, tool"],
    [{ messages: [{ role: "user" }] }, "messages.0.content must be a string or a list of text parts."],
    [{ messages: [{ role: "user", content: [{ type: "image_url" }] }] }, 'messages.0.content.0 has type "image_url"'],
    [{ tools: [{ type: "function", function: {} }] }, "tools.0 must be a function with a name."],
    [{ stop: [""] }, "stop must be a string that is not empty"],
    [{ n: 0 }, "n must be an integer from 1 to 128"],
    [{ max_tokens: 4000 }, "too large: 4000. This model's maximum context length is 2048 tokens"],
    [{ tool_choice: { type: "function" } }, "tool_choice must be auto or none"],
    [{ tool_choice: "required" }, "tool_choice must be auto or none"],
    [{ stream_options: { continuous_usage_stats: true } }, "only the last chunk has usage."],
    [{ cache_salt: "" }, "cache_salt must not be empty."],
    [{ temperature: -1 }, "temperature must be non-negative, got -1."],
    [{ model: "other" }, "The model `other` does not exist."],
  ])("says what is wrong with %j", async (more, message) => {
    const { status, body } = await chat(more);
    expect([status >= 400 && status < 500, body.error.message]).toEqual([true, expect.stringContaining(message)]);
  });
});

describe("/v1/completions", () => {
  it("takes a text, or ids, or a list of one", async () => {
    const ids = await tokenizer.encode("one two");
    for (const prompt of ["one two", ids, ["one two"], [ids]]) {
      const { choices } = (await complete({ prompt, return_token_ids: true, temperature: 0 })).body;
      expect(choices.map((choice: { prompt_token_ids: number[] }) => choice.prompt_token_ids)).toEqual([ids]);
    }
  });

  it("gives 16 tokens unasked, or what the context has left", async () => {
    const prompt = Array(2040).fill(5);
    expect((await complete({ max_tokens: undefined })).body.usage.completion_tokens).toBe(16);
    expect((await complete({ max_tokens: undefined, prompt })).body.usage.completion_tokens).toBe(8);
    expect((await complete({ max_tokens: 9, prompt })).body.error.message).toContain("too large: 9.");
  });

  it("streams what it answers whole", async () => {
    const body = { prompt: "one two", n: 2, max_tokens: 4, seed: 1, logprobs: 0, return_token_ids: true };
    const whole = (await post("/v1/completions", body)).body;
    const chunks = await stream("/v1/completions", { ...body, stream_options: { include_usage: true } });
    for (const choice of whole.choices) {
      const mine = chunks.flatMap(({ choices }) => choices).filter(({ index }) => index === choice.index);
      expect(mine.map(({ text }) => text).join("")).toBe(choice.text);
      expect(mine.flatMap(({ token_ids }) => token_ids)).toEqual(choice.token_ids);
      for (const key of ["token_logprobs", "tokens", "text_offset"]) {
        expect([key, mine.flatMap(({ logprobs }) => logprobs[key])]).toEqual([key, choice.logprobs[key]]);
      }
      expect(mine.flatMap(({ prompt_token_ids }) => prompt_token_ids ?? [])).toEqual(choice.prompt_token_ids);
      expect(mine.at(-1)!.finish_reason).toBe(choice.finish_reason);
    }
    expect(chunks.at(-1).usage).toEqual(whole.usage);
  });

  it("names the stop token that the request brought", async () => {
    script(served.sampler, [{ tokens: [67, 68, 69] }]);
    expect((await complete({ stop_token_ids: [68] })).body.choices[0]).toMatchObject({
      finish_reason: "stop",
      stop_reason: 68,
      text: "a",
    });
  });

  it.each([
    [{ prompt: undefined }, "prompt must be one text, or a list of token ids, at least one."],
    [{ prompt: [] }, "prompt must be one text, or a list of token ids, at least one."],
    [{ prompt: ["one", "two"] }, "prompt must be one text, or a list of token ids, at least one."],
    [{ prompt: "" }, "List should have at least 1 item"],
    [{ prompt: [1, "a"] }, "prompt must be one text, or a list of token ids, at least one."],
    [{ prompt: [-1] }, "prompt must be one text, or a list of token ids, at least one."],
    [{ prompt: [600] }, "Token id 600 is out of vocabulary"],
    [{ echo: true }, "echo is not supported: only what is sampled is answered."],
    [{ logprobs: 1 }, "logprobs must be 0: only sampled tokens have one."],
    [{ best_of: 2 }, "best_of is not supported: every sample is answered: give n."],
    [{ suffix: "x" }, "suffix is not supported: the model goes on from a prompt alone."],
  ])("says what is wrong with %j", async (more, message) => {
    const { status, body } = await complete(more);
    expect([status, body.error.message]).toEqual([400, expect.stringContaining(message)]);
  });
});

describe("requests that meet limits", () => {
  it("are refused beyond what may wait, and told to come back", async () => {
    await served.app.close();
    served = serveScripted({ limits: { bodyBytes: 1000, sequences: 3, headerSeconds: 5, requestSeconds: 5 } });
    await served.scheduler.pause("keep", true);
    const held = [complete({ n: 2 }), complete({ prompt: [5, 6] })];
    while (served.scheduler.load < 3) await new Promise((resolve) => setImmediate(resolve));
    const refused = await complete();
    expect([refused.status, refused.headers["retry-after"]]).toEqual([503, "1"]);
    expect(refused.body.error.message).toBe(
      "the engine is full: 3 of at most 3 sequences are running or waiting; try again later",
    );
    expect((await complete({ n: 4 })).body.error.message).toContain("asks for 4 sequences");
    served.scheduler.resume();
    for (const answer of await Promise.all(held)) expect(answer.status).toBe(200);
    expect((await complete()).status).toBe(200);
    const large = await complete({ user: "x".repeat(1000) });
    expect([large.status, large.body.error.code]).toEqual([413, 413]);
  });

  it("need the API key, where there is one, except for their health", async () => {
    await served.app.close();
    served = serveScripted({ apiKey: "k-1" });
    const get = (url: string, authorization?: string) =>
      served.app.inject({ url, headers: authorization === undefined ? {} : { authorization } });
    expect((await get("/health")).statusCode).toBe(200);
    for (const url of ["/v1/models", "/metrics", "/load", "/nowhere"]) {
      const { statusCode, body } = await get(url);
      expect([url, statusCode, JSON.parse(body).error]).toEqual([
        url,
        401,
        {
          message: "No API key was given: send it as Authorization: Bearer KEY.",
          type: "invalid_request_error",
          param: null,
          code: "invalid_api_key",
        },
      ]);
    }
    for (const wrong of ["Bearer k-2", "k-1", "Bearer k-11", "Bearer ", "bearer k-1"]) {
      expect([wrong, (await get("/v1/models", wrong)).statusCode]).toEqual([wrong, 401]);
    }
    expect((await get("/v1/models", "Bearer k-1")).statusCode).toBe(200);
  });

  it("that need text are told when the model folder has no tokenizer", async () => {
    await served.app.close();
    served = serveScripted({ loadTokenizer: () => Promise.reject(new Error("this folder has no tokenizer.json")) });
    const { status, body } = await chat();
    expect([status, body.error.message]).toEqual([
      400,
      "this engine serves token ids only: this folder has no tokenizer.json",
    ]);
    expect((await post("/inference/v1/generate", { token_ids: [1], sampling_params: { max_tokens: 1 } })).status).toBe(
      200,
    );
  });
});

describe("/metrics", () => {
  const metrics = async () => {
    const response = await served.app.inject({ url: "/metrics" });
    expect(response.headers["content-type"]).toContain("text/plain");
    return response.payload;
  };
  const value = (text: string, name: string) =>
    Number(
      text
        .split("\n")
        .find((line) => line.startsWith(name))
        ?.split(" ")
        .at(-1),
    );

  it("has vLLM's names, types and buckets", async () => {
    const text = await metrics();
    const types = [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name, type]) => [name, type]);
    expect(types.length).toBe(11);
    for (const [name, type] of types) expect([name, recorded.metrics.types[name!]]).toEqual([name, type]);
    for (const [name, buckets] of Object.entries<string[]>(recorded.metrics.buckets)) {
      const mine = [...text.matchAll(new RegExp(`^${name}_bucket{le="([^"]+)"`, "gm"))].map(([, le]) => Number(le));
      expect(mine).toEqual(buckets.map(Number));
    }
    expect(text).toContain('model_name="m",engine="0"');
  });

  it("counts requests, tokens and shared prompts", async () => {
    const prompt = Array.from({ length: 40 }, (_, index) => index + 3);
    await complete({ prompt, n: 3, max_tokens: 4, ignore_eos: true });
    const text = await metrics();
    expect(value(text, 'vllm:request_success_total{finished_reason="length"')).toBe(3);
    expect(value(text, 'vllm:request_success_total{finished_reason="abort"')).toBe(0);
    expect(value(text, "vllm:generation_tokens_total")).toBe(12);
    expect(value(text, "vllm:prompt_tokens_total")).toBe(120);
    expect(value(text, "vllm:prefix_cache_queries_total")).toBe(120);
    // Two of the three take all but the last token, whose logits they need.
    expect(value(text, "vllm:prefix_cache_hits_total")).toBe(78);
    expect(value(text, "vllm:time_to_first_token_seconds_count")).toBe(3);
    expect(value(text, "vllm:e2e_request_latency_seconds_count")).toBe(3);
    expect(value(text, "vllm:num_requests_running")).toBe(0);
    expect(value(text, "vllm:kv_cache_usage_perc")).toBe(0);
  });
});

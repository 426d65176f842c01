import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { encodeGenerate, parseGenerate, parseLoad, parsePromptLogprobs } from "./wire.ts";

const recorded = JSON.parse(readFileSync(new URL("./fixtures/vllm-0.32.json", import.meta.url), "utf8"));

function reply(overrides: Record<string, unknown> = {}) {
  const content = [
    { token_id: 5, logprob: -0.5 },
    { token_id: 6, logprob: 0 },
  ];
  const versions = [{ version: "3", start: 0, end: 2 }];
  const choice = { token_ids: [5, 6], logprobs: { content }, finish_reason: "stop", weight_versions: versions };
  return { choices: [{ ...choice, ...overrides }] };
}

describe("encodeGenerate", () => {
  it("is JSON with the ids and every parameter that could change the distribution", () => {
    const sampling = { temperature: 0.5, topP: 0.9, topK: 3, maxTokens: 8, stopTokenIds: [2], seed: 2 ** 40 };
    const body = JSON.parse(
      encodeGenerate({ requestId: 'a"b', tokenIds: Int32Array.of(1, 2, 3), version: 7, sampling }),
    );
    expect(body).toMatchObject({ request_id: 'a"b', token_ids: [1, 2, 3], cache_salt: "7" });
    expect(body.sampling_params).toMatchObject({ temperature: 0.5, top_p: 0.9, top_k: 3, max_tokens: 8, logprobs: 0 });
    expect(body.sampling_params).toMatchObject({ stop_token_ids: [2], seed: 2 ** 40, n: 1, min_p: 0 });
    expect(body.sampling_params).toMatchObject({ presence_penalty: 0, frequency_penalty: 0, repetition_penalty: 1 });
  });

  it("shares a prefix with those of its version alone: the synced one, where weights may change under it", () => {
    const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 8, stopTokenIds: [], seed: 0 };
    const saltOf = (versions: { version: number | null; synced?: number }) =>
      JSON.parse(encodeGenerate({ requestId: "a", tokenIds: [1], sampling, ...versions })).cache_salt;
    expect(saltOf({ version: null, synced: 4 })).toBe("4");
    expect(saltOf({ version: 3, synced: 4 })).toBe("3");
    expect(saltOf({ version: null })).toBeUndefined();
  });
});

describe("parseGenerate", () => {
  it("reads what vLLM 0.32 answered", () => {
    expect(parseGenerate(recorded.generate_after_version.response)).toEqual({
      tokenIds: [359, 346, 465, 488],
      logprobs: recorded.generate_after_version.response.choices[0].logprobs.content.map(
        ({ logprob }: { logprob: number }) => logprob,
      ),
      versions: [7, 7, 7, 7],
      stop: "length",
    });
  });

  it("reads the older shape of log-probabilities, without versions", () => {
    const content = [
      { token: "token_id:5", logprob: -0.5, bytes: null, top_logprobs: [] },
      { token: "token_id:6", logprob: -0.25, bytes: null, top_logprobs: [] },
    ];
    const parsed = parseGenerate(reply({ logprobs: { content }, weight_versions: undefined }));
    expect(parsed).toEqual({ tokenIds: [5, 6], logprobs: [-0.5, -0.25], versions: null, stop: "stop" });
  });

  it("spreads spans of several versions over the tokens", () => {
    const weight_versions = [
      { version: "3", start: 0, end: 1 },
      { version: "4", start: 1, end: 2 },
    ];
    expect(parseGenerate(reply({ weight_versions })).versions).toEqual([3, 4]);
  });

  it("takes rounding of 0 for what it is", () => {
    const content = [5, 6].map((token_id) => ({ token_id, logprob: 5e-7 }));
    expect(parseGenerate(reply({ logprobs: { content } })).logprobs).toEqual([5e-7, 5e-7]);
  });

  const withLogprob = (logprob: unknown) => ({
    logprobs: { content: [5, 6].map((token_id) => ({ token_id, logprob })) },
  });
  it.each([
    ["a positive log-probability", withLogprob(0.01), "is 0.01"],
    ["vLLM's clamped infinity", withLogprob(-9999), "is -9999"],
    ["null", withLogprob(null), "is null"],
    ["no log-probabilities", { logprobs: null }, "0 log-probabilities for 2 tokens"],
    ["too few log-probabilities", { logprobs: { content: [{ token_id: 5, logprob: -1 }] } }, "1 log-probabilities"],
    ["another token's", { token_ids: [5, 7] }, "of token 6, the token there is 7"],
    ["an unknown finish_reason", { finish_reason: "error" }, 'finish_reason "error"'],
    ["no token_ids", { token_ids: undefined }, "no token_ids"],
    ["versions with a gap", { weight_versions: [{ version: "3", start: 1, end: 2 }] }, "gap or overlap"],
    ["versions that end early", { weight_versions: [{ version: "3", start: 0, end: 1 }] }, "covers 1 of 2"],
    ["a version that nobody set", { weight_versions: [{ version: "default", start: 0, end: 2 }] }, '"default"'],
  ])("refuses %s", (_, overrides, reason) => {
    expect(() => parseGenerate(reply(overrides))).toThrow(reason);
  });

  it.each([null, {}, { choices: [] }, { choices: [{}, {}] }])("refuses %j", (answer) => {
    expect(() => parseGenerate(answer)).toThrow("instead of one");
  });
});

describe("parsePromptLogprobs", () => {
  const { request, response } = recorded.generate_prompt_logprobs;

  it("reads what vLLM 0.32 answered: none of the first token", () => {
    expect(parsePromptLogprobs(response, Int32Array.from(request.body.token_ids))).toEqual([
      -6.202847003936768, -6.271533966064453, -6.807338714599609, -6.437737941741943, -7.008145332336426,
    ]);
  });

  it.each([
    ["none", {}, "no prompt_logprobs for 2 tokens"],
    ["too few", { prompt_logprobs: [null] }, "1 prompt_logprobs for 2 tokens"],
    ["another token's", { prompt_logprobs: [null, { "7": { logprob: -1 } }] }, "log-probability undefined at 1"],
    ["the clamp", { prompt_logprobs: [null, { "2": { logprob: -9999 } }] }, "log-probability -9999 at 1"],
  ])("refuses %s", (_, answer, reason) => {
    expect(() => parsePromptLogprobs(answer, Int32Array.of(1, 2))).toThrow(reason);
  });
});

it("parseLoad sums an engine's replicas, and nothing of a like name", () => {
  const lines = [
    "# TYPE vllm:num_requests_running gauge",
    'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
    'vllm:num_requests_running{engine="1",model_name="m"} 4.0',
    'vllm:num_requests_waiting{engine="0",model_name="m"} 1e+01',
    'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 10.0',
  ];
  expect(parseLoad(lines.join("\n"))).toEqual({ running: 7, waiting: 10 });
  expect(parseLoad("")).toEqual({ running: 0, waiting: 0 });
});

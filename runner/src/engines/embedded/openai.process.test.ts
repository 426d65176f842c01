import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { serveDefaults } from "../../commands/serve.ts";
import { Tokenizer } from "../../data/tokenizer.ts";
import { withDeadline } from "../../deadline.ts";
import { EngineClient } from "../client.ts";
import { type EmbeddedEngine, startEngine } from "./engine.ts";

const root = fileURLToPath(new URL("../../../../", import.meta.url));
const model = `${root}recipes/quickstart/model`;
const apiKey = "k-1";

let engine: EmbeddedEngine;
let client: OpenAI;
beforeAll(async () => {
  engine = await startEngine({ ...serveDefaults, model, init: "random", port: 0, threads: 1, apiKey }, "0.1.0");
  client = new OpenAI({ baseURL: `${engine.url}/v1`, apiKey, maxRetries: 0 });
});
afterAll(() => engine.close());

const headers = { authorization: `Bearer ${apiKey}`, "content-type": "application/json" };
const messages = [{ role: "user" as const, content: "sort 4917" }];

async function post(path: string, body: object) {
  const response = await fetch(`${engine.url}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  return response.json() as Promise<never>;
}

async function load(): Promise<number> {
  const response = await fetch(`${engine.url}/load`, { headers });
  return ((await response.json()) as { server_load: number }).server_load;
}

async function hits(): Promise<number> {
  const text = await (await fetch(`${engine.url}/metrics`, { headers })).text();
  return Number(/^vllm:prefix_cache_hits_total\{.*\} (\d+)$/m.exec(text)![1]);
}

async function loadIs(wanted: number) {
  while ((await load()) !== wanted) await new Promise((resolve) => setTimeout(resolve, 10));
}

describe("OpenAI's library", () => {
  it("lists the model", async () => {
    const { data } = await client.models.list();
    expect(data.map(({ id }) => id)).toEqual(["model"]);
  });

  it("chats, whole and streamed, to the same text", async () => {
    const request = { model: "model", messages, max_tokens: 8, seed: 3, temperature: 1 };
    const whole = await client.chat.completions.create({ ...request, logprobs: true });
    const [choice] = whole.choices;
    expect(choice!.message.role).toBe("assistant");
    expect(choice!.logprobs!.content!.length).toBe(whole.usage!.completion_tokens);
    const streamed = client.chat.completions.stream({ ...request, stream_options: { include_usage: true } });
    const final = await streamed.finalChatCompletion();
    expect(final.choices[0]!.message.content).toBe(choice!.message.content);
    expect(final.choices[0]!.finish_reason).toBe(choice!.finish_reason);
    expect(final.usage!.total_tokens).toBe(whole.usage!.total_tokens);
  });

  it("completes, whole and streamed, to the same text", async () => {
    const request = { model: "model", prompt: "sort 4917", max_tokens: 8, seed: 3, temperature: 1 };
    const whole = await client.completions.create(request);
    let text = "";
    for await (const chunk of await client.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0]!.text;
    }
    expect(text).toBe(whole.choices[0]!.text);
  });

  it("frees the request of a stream that it aborts", async () => {
    const options = { model: "model", messages, max_tokens: 40, n: 64, stream: true as const };
    const stream = await client.chat.completions.create({ ...options, ignore_eos: true } as typeof options);
    for await (const chunk of stream) {
      expect(chunk.object).toBe("chat.completion.chunk");
      break;
    }
    await withDeadline(loadIs(0), 30, "the request to be gone");
  });

  it("gets its own error classes", async () => {
    const wrong = new OpenAI({ baseURL: `${engine.url}/v1`, apiKey: "k-2", maxRetries: 0 });
    await expect(wrong.models.list()).rejects.toThrow(OpenAI.AuthenticationError);
    const request = { model: "model", messages, logit_bias: { 3: 1 } };
    await expect(client.chat.completions.create(request)).rejects.toThrow(OpenAI.BadRequestError);
    const other = client.chat.completions.create({ model: "other", messages });
    await expect(other).rejects.toThrow(OpenAI.NotFoundError);
  });
});

it("the runner's own client gives the environment's key", async () => {
  await expect(new EngineClient().weightVersion(engine.url, { timeoutSeconds: 20 })).rejects.toThrow(
    "No API key was given",
  );
  vi.stubEnv("MOLT_API_KEY", apiKey);
  const own = new EngineClient();
  expect(await own.weightVersion(engine.url, { timeoutSeconds: 20 })).toBe("default");
  await own.close();
  vi.unstubAllEnvs();
});

describe("the native sampler", () => {
  const prompt = Array.from({ length: 40 }, (_, index) => 10 + ((index * 7) % 50));
  const body = { token_ids: prompt, sampling_params: { max_tokens: 12, ignore_eos: true, seed: 5, n: 8, logprobs: 0 } };
  interface Answer {
    choices: { token_ids: number[]; logprobs: { content: { logprob: number }[] } }[];
  }

  it("answers the same with shared prompts and without", async () => {
    const before = await hits();
    const shared: Answer = await post("/inference/v1/generate", body);
    // Seven take all of the prompt but its last token.
    expect((await hits()) - before).toBe(7 * 39);
    for (const [sample, choice] of shared.choices.entries()) {
      const sampling_params = { ...body.sampling_params, n: 1, seed: 5 + sample };
      const { choices }: Answer = await post("/inference/v1/generate", { ...body, sampling_params });
      expect(choices[0]!.token_ids).toEqual(choice.token_ids);
      choice.logprobs.content.forEach(({ logprob }, index) => {
        expect(Math.abs(logprob - choices[0]!.logprobs.content[index]!.logprob)).toBeLessThan(1e-5);
      });
    }
    expect((await hits()) - before).toBe(7 * 39);
  });

  it("scores a prompt as it scored the tokens when it sampled them", async () => {
    const sampled: Answer = await post("/inference/v1/generate", body);
    const [first] = sampled.choices;
    const whole = [...prompt, ...first!.token_ids];
    const sampling_params = { max_tokens: 1, prompt_logprobs: 0 };
    const scored: { prompt_logprobs: (Record<string, { logprob: number }> | null)[] } = await post(
      "/inference/v1/generate",
      { token_ids: whole, sampling_params },
    );
    expect(scored.prompt_logprobs[0]).toBeNull();
    first!.token_ids.forEach((id, index) => {
      const { logprob } = scored.prompt_logprobs[prompt.length + index]![id]!;
      expect(Math.abs(logprob - first!.logprobs.content[index]!.logprob)).toBeLessThan(1e-4);
    });
  });

  it("serves the folder's own tokenizer and template", async () => {
    const tokenizer = await Tokenizer.load(model);
    const tokens = await tokenizer.encodeChat(messages, { addGenerationPrompt: true });
    const answer: { tokens: number[] } = await post("/tokenize", { messages });
    expect(answer.tokens).toEqual(tokens);
    expect(await post("/detokenize", { tokens })).toEqual({ prompt: await tokenizer.decode(tokens) });
  });
});

const examples = [...readFileSync(`${root}docs/engine.md`, "utf8").matchAll(/^```js\n([\s\S]*?)^```$/gm)];

it.each(examples.map(([, code]) => code!))("the example of docs/engine.md runs: %#", async (code) => {
  const program = code.replaceAll("http://127.0.0.1:8000", engine.url);
  expect(program).not.toBe(code);
  const args = ["--input-type=module", "-e", program];
  const env = { ...process.env, MOLT_API_KEY: apiKey };
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { cwd: root, env, timeout: 60_000 });
  expect(stderr).toBe("");
  expect(stdout.trim()).not.toBe("");
});

it("docs/engine.md has two examples", () => expect(examples.length).toBe(2));

import { randomBytes } from "node:crypto";
import type { FastifyInstance } from "fastify";
import {
  type Answering,
  createdNow,
  encodePromptLogprobs,
  fullUsage,
  readTextCall,
  respond,
  type ServerContext,
  type TextCall,
  textTokenizer,
  usageOf,
} from "./answers.ts";
import type { TextTokenizer } from "./choice-text.ts";
import { type Choice, stopReasonOf } from "./choices.ts";
import {
  checkRoom,
  type FieldCheck,
  is,
  type Json,
  none,
  openAiFields,
  read,
  readBody,
  readFlag,
  readPrompt,
  samplingFields,
} from "./fields.ts";
import { HttpError } from "./http-error.ts";

const bodyFields: Record<string, FieldCheck> = {
  ...samplingFields,
  ...openAiFields,
  prompt: read,
  logprobs: is(0),
  add_special_tokens: read,
  suffix: none,
  best_of: is(1),
  prompt_embeds: none,
};

const defaultMaxTokens = 16;
const mostPrompts = 1024;

/** OpenAI's older route: text, or token ids, to text. */
export function addCompletions(app: FastifyInstance, context: ServerContext): void {
  app.post("/v1/completions", async (http, reply) => {
    const call = await readCall(http.body, context);
    respond(reply, context, call, answering(call, context));
    return reply;
  });
}

async function readCall(value: unknown, context: ServerContext): Promise<TextCall> {
  const { model } = context;
  const body = readBody(value, bodyFields, model);
  const call = readTextCall(body, context);
  const tokenizer = await textTokenizer(context);
  const prompts = await readPrompts(body, tokenizer, context);
  const wanted = call.sampling.maxTokens;
  if (wanted !== null) for (const { length } of prompts) checkRoom(length, wanted, model);
  const maxTokens = prompts.map(({ length }) => wanted ?? Math.min(defaultMaxTokens, model.maxModelLen - length));
  const id = `cmpl-${randomBytes(8).toString("hex")}`;
  return { id, prompts, maxTokens, tokenizer, tokenTexts: body.logprobs === 0, ...call };
}

/** A text, token ids, or a list of either. */
async function readPrompts(body: Json, tokenizer: TextTokenizer, { model }: ServerContext): Promise<Int32Array[]> {
  const { prompt } = body;
  const withSpecial = readFlag(body, "add_special_tokens", true);
  const list = Array.isArray(prompt) && typeof prompt[0] !== "number" ? prompt : [prompt];
  if (list.length === 0 || list.length > mostPrompts) {
    throw new HttpError(400, `prompt must hold 1 to ${mostPrompts} prompts, got ${list.length}.`, "prompt");
  }
  const prompts: Int32Array[] = [];
  for (const one of list) {
    if (typeof one !== "string" && !Array.isArray(one)) {
      throw new HttpError(400, "prompt must be a string, a list of token ids, or a list of either.", "prompt");
    }
    const encoded = typeof one === "string" ? await encodeText(one, tokenizer, withSpecial) : one;
    prompts.push(readPrompt(encoded, "body.prompt", model));
  }
  return prompts;
}

export function encodeText(text: string, tokenizer: TextTokenizer, withSpecial: boolean): Promise<number[]> {
  return withSpecial ? tokenizer.encodeRendered(text) : tokenizer.encode(text);
}

function answering(call: TextCall, context: ServerContext): Answering {
  const base = { id: call.id, object: "text_completion", created: createdNow(), model: context.model.name };
  const system_fingerprint = context.fingerprint;
  const offsets = new Map<number, number>();
  return {
    whole: async (choices) =>
      JSON.stringify({
        ...base,
        choices: await Promise.all(choices.map((choice) => encodeChoice(call, choice, context))),
        service_tier: null,
        system_fingerprint,
        usage: fullUsage(call, choices),
        kv_transfer_params: null,
        ec_transfer_params: null,
        metrics: null,
      }),
    stream: call.stream
      ? {
          opening: [],
          delta: (choice, from, to, finish) => {
            const { index, output, text } = choice;
            const offset = offsets.get(index) ?? 0;
            const shown = text!.release(finish !== null);
            offsets.set(index, offset + shown.length);
            const stop_reason = finish && stopReasonOf(choice, call.sampling, context.model);
            const logprobs = call.tokenTexts ? encodeLogprobs(call, choice, from, to, offset) : null;
            const prompt_token_ids = call.returnTokenIds && from === 0 ? [...choice.prompt] : null;
            const token_ids = call.returnTokenIds ? output.tokenIds.slice(from, to) : null;
            const ids = { prompt_token_ids, token_ids };
            return { ...base, choices: [{ index, text: shown, logprobs, finish_reason: finish, stop_reason, ...ids }] };
          },
          usage: call.includeUsage
            ? (choices) => ({ ...base, choices: [], usage: usageOf(call, choices), system_fingerprint })
            : null,
        }
      : null,
  };
}

async function encodeChoice(call: TextCall, choice: Choice, { model }: ServerContext) {
  const { index, output, prompt, text } = choice;
  return {
    index,
    text: text!.text,
    logprobs: call.tokenTexts ? encodeLogprobs(call, choice, 0, output.tokenIds.length, 0) : null,
    finish_reason: output.finish,
    stop_reason: stopReasonOf(choice, call.sampling, model),
    token_ids: call.returnTokenIds ? output.tokenIds : null,
    prompt_logprobs: await encodePromptLogprobs(choice, call.tokenizer),
    prompt_token_ids: call.returnTokenIds ? [...prompt] : null,
    routed_experts: null,
  };
}

/** OpenAI's older form. Offsets count the tokens' own texts from `offset`, as vLLM's do. */
function encodeLogprobs(call: TextCall, { output, text }: Choice, from: number, to: number, offset: number) {
  const ids = output.tokenIds.slice(from, to);
  const tokens = ids.map((id, at) => (call.tokensAsIds ? `token_id:${id}` : text!.tokenTexts[from + at]!));
  const token_logprobs = output.logprobs.slice(from, to);
  let end = offset;
  const text_offset = tokens.map((token) => {
    const start = end;
    end += token.length;
    return start;
  });
  const top_logprobs = tokens.map((token, at) => ({ [token]: token_logprobs[at] }));
  return { text_offset, token_logprobs, tokens, top_logprobs };
}

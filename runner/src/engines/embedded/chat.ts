import { randomBytes } from "node:crypto";
import type { FastifyInstance } from "fastify";
import { messageOf } from "../../errors.ts";
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
import { readMessages, readTools } from "./messages.ts";

const bodyFields: Record<string, FieldCheck> = {
  ...samplingFields,
  ...openAiFields,
  messages: read,
  max_completion_tokens: read,
  logprobs: read,
  top_logprobs: is(0),
  tools: read,
  // Tools are shown to the model; its text is not parsed for calls, so none can be promised.
  tool_choice: is("none"),
  parallel_tool_calls: is(true),
  add_generation_prompt: read,
  continue_final_message: is(false),
  add_special_tokens: is(false),
  documents: none,
  chat_template: none,
  chat_template_kwargs: none,
  reasoning_effort: none,
  include_reasoning: is(true),
  return_prompt_text: is(false),
  mm_processor_kwargs: none,
  media_io_kwargs: none,
};

/** OpenAI's route of messages to a message, by the model folder's own template. */
export function addChat(app: FastifyInstance, context: ServerContext): void {
  app.post("/v1/chat/completions", async (http, reply) => {
    const call = await readCall(http.body, context);
    respond(reply, context, call, answering(call, context));
    return reply;
  });
}

async function readCall(value: unknown, context: ServerContext): Promise<TextCall> {
  const { model } = context;
  const body = readBody(value, bodyFields, model);
  const call = readTextCall({ ...body, max_tokens: body.max_completion_tokens ?? body.max_tokens }, context);
  const tokenTexts = readFlag(body, "logprobs", false);
  const render = readChat(body);
  const tokenizer = await textTokenizer(context);
  const prompt = readPrompt(await encodeChat(render, tokenizer), "body.messages", model);
  const { sampling } = call;
  if (sampling.maxTokens !== null) checkRoom(prompt.length, sampling.maxTokens, model);
  // The template's closer of a turn ends one, whether or not the model's configuration says so.
  if (!readFlag(body, "ignore_eos", false)) for (const id of tokenizer.stopTokenIds) sampling.stopTokenIds.add(id);
  const maxTokens = [sampling.maxTokens ?? model.maxModelLen - prompt.length];
  const id = `chatcmpl-${randomBytes(8).toString("hex")}`;
  return { id, prompts: [prompt], maxTokens, tokenizer, tokenTexts, ...call };
}

/** What is rendered, of a request's or `/tokenize`'s fields. */
export function readChat(body: Json) {
  const addGenerationPrompt = readFlag(body, "add_generation_prompt", true);
  return { messages: readMessages(body.messages), options: { tools: readTools(body.tools), addGenerationPrompt } };
}

export async function encodeChat(
  { messages, options }: ReturnType<typeof readChat>,
  tokenizer: TextTokenizer,
): Promise<number[]> {
  try {
    return await tokenizer.encodeChat(messages, options);
  } catch (error) {
    throw new HttpError(400, messageOf(error), "messages");
  }
}

function answering(call: TextCall, context: ServerContext): Answering {
  const { model, fingerprint: system_fingerprint } = context;
  const [prompt] = call.prompts;
  const promptIds = call.returnTokenIds ? [...prompt!] : null;
  const base = { id: call.id, object: "chat.completion", created: createdNow(), model: model.name };
  const chunk = { ...base, object: "chat.completion.chunk" };
  return {
    whole: async (choices) =>
      JSON.stringify({
        ...base,
        choices: choices.map((choice) => encodeChoice(call, choice, context)),
        service_tier: null,
        system_fingerprint,
        usage: fullUsage(call, choices),
        prompt_logprobs: await encodePromptLogprobs(choices[0]!, call.tokenizer),
        prompt_token_ids: promptIds,
        prompt_text: null,
        kv_transfer_params: null,
        ec_transfer_params: null,
        metrics: null,
      }),
    stream: call.stream
      ? {
          opening: Array.from({ length: call.sampling.n }, (_, index) => {
            const delta = { role: "assistant", content: "" };
            const choices = [{ index, delta, logprobs: null, finish_reason: null }];
            return { ...chunk, choices, prompt_token_ids: promptIds };
          }),
          delta: (choice, from, to, finish) => {
            const { index, output, text } = choice;
            const delta = { content: text!.release(finish !== null) };
            const logprobs = call.tokenTexts ? encodeLogprobs(call, choice, from, to) : null;
            const end = finish && { stop_reason: stopReasonOf(choice, call.sampling, model) };
            const token_ids = call.returnTokenIds ? output.tokenIds.slice(from, to) : null;
            return { ...chunk, choices: [{ index, delta, logprobs, finish_reason: finish, ...end, token_ids }] };
          },
          usage: call.includeUsage
            ? (choices) => ({ ...chunk, choices: [], usage: usageOf(call, choices), system_fingerprint })
            : null,
        }
      : null,
  };
}

function encodeChoice(call: TextCall, choice: Choice, { model }: ServerContext) {
  const { index, output, text } = choice;
  const nothing = { refusal: null, annotations: null, audio: null, function_call: null, reasoning: null };
  return {
    index,
    message: { role: "assistant", content: text!.text, ...nothing },
    logprobs: call.tokenTexts ? encodeLogprobs(call, choice, 0, output.tokenIds.length) : null,
    finish_reason: output.finish,
    stop_reason: stopReasonOf(choice, call.sampling, model),
    token_ids: call.returnTokenIds ? output.tokenIds : null,
    routed_experts: null,
  };
}

function encodeLogprobs({ tokensAsIds }: TextCall, { output, text }: Choice, from: number, to: number) {
  const ids = output.tokenIds.slice(from, to);
  const content = ids.map((id, at) => {
    const token = tokensAsIds ? `token_id:${id}` : text!.tokenTexts[from + at]!;
    return { token, logprob: output.logprobs[from + at], bytes: [...Buffer.from(token)], top_logprobs: [] };
  });
  return { content };
}

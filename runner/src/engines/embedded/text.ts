import { randomBytes } from "node:crypto";
import type { FastifyInstance } from "fastify";
import { chatWire } from "../../agents/wires/chat.ts";
import { readMessages, readTools } from "../../agents/wires/chat-messages.ts";
import { completionsWire } from "../../agents/wires/completions.ts";
import type { TextWire, WireChoice, WireReply, WireRequest } from "../../agents/wires/types.ts";
import type { RenderOptions } from "../../data/chat-template.ts";
import { messageOf } from "../../errors.ts";
import { type Answering, checkModel, createdNow, readBody, respond, type ServerContext } from "./answers.ts";
import type { TextTokenizer } from "./choice-text.ts";
import { type Choice, type ChoicesRequest, stopReasonOf } from "./choices.ts";
import { checkRoom, type Json, readFlag, readPrompt, readSalt, readSampling, type ServedModel } from "./fields.ts";
import { badRequest } from "./http-error.ts";

/** Ids begin with the word beside. */
const routes: [path: string, wire: TextWire, id: string][] = [
  ["/v1/chat/completions", chatWire, "chatcmpl"],
  ["/v1/completions", completionsWire, "cmpl"],
];

/** OpenAI's: messages by the folder's template, or a prompt. */
export function addText(app: FastifyInstance, context: ServerContext): void {
  for (const [path, wire, word] of routes) {
    app.post(path, async ({ body }, reply) => {
      const request = wire.parse(body, "engine");
      const id = `${word}-${randomBytes(8).toString("hex")}`;
      const call = await readCall(id, request, body as Json, context);
      await respond(reply, context, call, answering(wire, request, call, context.model));
    });
  }
}

async function readCall(id: string, request: WireRequest, body: Json, context: ServerContext) {
  const { model } = context;
  checkModel(body.model, model);
  const max_tokens = body.max_completion_tokens ?? body.max_tokens;
  const sampling = readSampling({ ...body, max_tokens }, "", model.eosTokenIds);
  const cacheSalt = readSalt(body);
  const tokenizer = await context.tokenizer();
  const prompt = readPrompt(await encode(request, tokenizer), "body.prompt", model);
  if (sampling.maxTokens !== null) checkRoom(prompt.length, sampling.maxTokens, model);
  sampling.maxTokens = request.maxTokens;
  // The template's end of turn counts, whether or not the model's configuration has it.
  const closes = request.prompt === null && !readFlag(body, "ignore_eos", false);
  if (closes) for (const closer of tokenizer.stopTokenIds) sampling.stopTokenIds.add(closer);
  return { id, prompt, sampling, cacheSalt, tokenizer, tokenTexts: request.logprobs, stream: request.stream };
}

async function encode({ prompt, messages, tools, toolChoice }: WireRequest, tokenizer: TextTokenizer) {
  if (prompt !== null) return typeof prompt === "string" ? tokenizer.encodeRendered(prompt) : prompt;
  const shown = toolChoice === "auto" && tools.length > 0 ? tools : undefined;
  return encodeChat(tokenizer, messages, { tools: shown, addGenerationPrompt: true });
}

async function encodeChat(
  tokenizer: TextTokenizer,
  messages: WireRequest["messages"],
  options: RenderOptions,
): Promise<number[]> {
  try {
    return await tokenizer.encodeChat(messages, options);
  } catch (error) {
    throw badRequest(messageOf(error), "messages");
  }
}

function answering(wire: TextWire, request: WireRequest, call: ChoicesRequest, model: ServedModel): Answering {
  const head = { id: call.id, created: createdNow(), model: model.name, promptTokenIds: [...call.prompt] };
  const toPart = (choice: Choice, from: number, to: number, stop: WireChoice["stop"]): WireChoice => {
    const { output, text } = choice;
    const tokenIds = output.tokenIds.slice(from, to);
    const toLogprob = (_: number, at: number) => ({
      token: text!.tokenTexts[from + at]!,
      logprob: output.logprobs[from + at]!,
    });
    return {
      content: text!.release(stop !== null),
      reasoning: null,
      toolCalls: [],
      stop,
      stopString: text!.stopString,
      stopReason: stop && stopReasonOf(choice, call.sampling),
      tokenIds,
      logprobs: request.logprobs ? tokenIds.map(toLogprob) : null,
    };
  };
  const toReply = (choices: Choice[]): WireReply => {
    const parts = choices.map((choice) => toPart(choice, 0, choice.output.tokenIds.length, choice.output.finish));
    return { ...head, choices: parts };
  };
  return {
    whole: (choices) => wire.answer(request, toReply(choices)),
    opening: () => wire.opening(request, head),
    delta: (choice, from, to, finish) => {
      const { released } = choice.text!;
      const part = toPart(choice, from, to, finish);
      return wire.chunk(request, head, part, choice.index, { tokens: from, characters: released });
    },
    usage: request.includeUsage ? (choices) => wire.usage(toReply(choices)) : null,
  };
}

export function addTokenize(app: FastifyInstance, context: ServerContext): void {
  const { model } = context;
  app.post("/tokenize", async (http) => {
    const body = readBody(http.body, "tokenize", model);
    const tokenizer = await context.tokenizer();
    const tokens = await tokenize(body, tokenizer);
    const strings = readFlag(body, "return_token_strs", false) ? tokens.map((id) => tokenizer.textOf(id)) : null;
    return { count: tokens.length, max_model_len: model.maxModelLen, tokens, token_strs: strings };
  });
  app.post("/detokenize", async (http) => {
    const { tokens } = readBody(http.body, "tokenize", model);
    const tokenizer = await context.tokenizer();
    const unbounded = { ...model, maxModelLen: Infinity };
    const ids = Array.isArray(tokens) && tokens.length === 0 ? [] : readPrompt(tokens, "body.tokens", unbounded);
    return { prompt: await tokenizer.decode([...ids]) };
  });
}

async function tokenize(body: Json, tokenizer: TextTokenizer): Promise<number[]> {
  const { prompt, messages } = body;
  if (messages !== undefined) {
    const tools = readTools(body.tools);
    const addGenerationPrompt = readFlag(body, "add_generation_prompt", true);
    return encodeChat(tokenizer, readMessages(messages), { tools: tools[0] && tools, addGenerationPrompt });
  }
  if (typeof prompt !== "string") throw badRequest("prompt must be a string.", "prompt");
  return readFlag(body, "add_special_tokens", true) ? tokenizer.encodeRendered(prompt) : tokenizer.encode(prompt);
}

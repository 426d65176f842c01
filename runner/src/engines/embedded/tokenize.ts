import type { FastifyInstance } from "fastify";
import { readMessages, readTools } from "../../agents/wires/chat-messages.ts";
import { readBody, type ServerContext } from "./answers.ts";
import type { TextTokenizer } from "./choice-text.ts";
import { type Json, readFlag, readPrompt } from "./fields.ts";
import { badRequest } from "./http-error.ts";
import { encodeChat } from "./text.ts";

export function addTokenize(app: FastifyInstance, context: ServerContext): void {
  const { model } = context;
  app.post("/tokenize", async (http) => {
    const body = readBody(http.body, "tokenize", model);
    const tokenizer = await context.tokenizer();
    const tokens = await encode(body, tokenizer);
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

async function encode(body: Json, tokenizer: TextTokenizer): Promise<number[]> {
  const { prompt, messages } = body;
  if (messages !== undefined) {
    const tools = readTools(body.tools);
    const addGenerationPrompt = readFlag(body, "add_generation_prompt", true);
    return encodeChat(tokenizer, readMessages(messages), { tools: tools[0] && tools, addGenerationPrompt });
  }
  if (typeof prompt !== "string") throw badRequest("prompt must be a string.", "prompt");
  return readFlag(body, "add_special_tokens", true) ? tokenizer.encodeRendered(prompt) : tokenizer.encode(prompt);
}

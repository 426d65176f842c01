import type { FastifyInstance } from "fastify";
import { type ServerContext, textTokenizer } from "./answers.ts";
import { encodeChat, readChat } from "./chat.ts";
import { encodeText } from "./completions.ts";
import { type FieldCheck, is, type Json, none, read, readBody, readFlag, readPrompt } from "./fields.ts";
import { HttpError } from "./http-error.ts";

const tokenizeFields: Record<string, FieldCheck> = {
  model: read,
  prompt: read,
  messages: read,
  tools: read,
  add_generation_prompt: read,
  add_special_tokens: read,
  return_token_strs: read,
  continue_final_message: is(false),
  chat_template: none,
  chat_template_kwargs: none,
};

/** vLLM's `/tokenize` and `/detokenize`. */
export function addTokenize(app: FastifyInstance, context: ServerContext): void {
  const { model } = context;
  app.post("/tokenize", async (http) => {
    const body = readBody(http.body, tokenizeFields, model);
    const tokenizer = await textTokenizer(context);
    const tokens = await encode(body, tokenizer);
    const strings = readFlag(body, "return_token_strs", false) ? tokens.map((id) => tokenizer.textOf(id)) : null;
    return { count: tokens.length, max_model_len: model.maxModelLen, tokens, token_strs: strings };
  });
  app.post("/detokenize", async (http) => {
    const { tokens } = readBody(http.body, { model: read, tokens: read }, model);
    const tokenizer = await textTokenizer(context);
    const unbounded = { ...model, maxModelLen: Number.POSITIVE_INFINITY };
    const ids = Array.isArray(tokens) && tokens.length === 0 ? [] : readPrompt(tokens, "body.tokens", unbounded);
    return { prompt: await tokenizer.decode([...ids]) };
  });
}

async function encode(body: Json, tokenizer: Awaited<ReturnType<typeof textTokenizer>>): Promise<number[]> {
  if (body.messages !== undefined) return encodeChat(readChat(body), tokenizer);
  if (typeof body.prompt !== "string") throw new HttpError(400, "prompt must be a string.", "prompt");
  return encodeText(body.prompt, tokenizer, readFlag(body, "add_special_tokens", true));
}

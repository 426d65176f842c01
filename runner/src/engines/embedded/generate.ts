import { randomBytes } from "node:crypto";
import type { FastifyInstance } from "fastify";
import { readFields, requestFields } from "../../agents/wires/fields.ts";
import { isObject } from "../../data/config-json.ts";
import { type Answering, createdNow, readBody, respond, type ServerContext } from "./answers.ts";
import { type Choice, type ChoicesRequest, stopReasonOf } from "./choices.ts";
import {
  readFlag,
  readPrompt,
  readSalt,
  readSampling,
  readStreamOptions,
  readText,
  type ServedModel,
} from "./fields.ts";
import { validation } from "./http-error.ts";

interface GenerateCall extends ChoicesRequest {
  logprobs: boolean;
  stream: boolean;
  includeUsage: boolean;
  withText: boolean;
  returnTokenIds: boolean;
}

/** vLLM's tokens in and tokens out (reference: vllm.md, section 1). */
export function addGenerate(app: FastifyInstance, context: ServerContext): void {
  app.post("/inference/v1/generate", async (http, reply) => {
    const call = readCall(http.body, http.headers["x-request-id"] as string | undefined, context);
    const needsText = call.withText || call.sampling.promptLogprobs || call.sampling.stop.length > 0;
    if (needsText) call.tokenizer = await context.tokenizer();
    await respond(reply, context, call, answering(call, context.model));
  });
}

function readCall(value: unknown, headerId: string | undefined, context: ServerContext): GenerateCall {
  const { model } = context;
  const body = readBody(value, "generate", model);
  const params = body.sampling_params;
  if (params === undefined) throw validation("body.sampling_params", "missing", "Field required");
  if (!isObject(params)) throw validation("body.sampling_params", "dict_type", "Input should be a valid dictionary");
  readFields(params, requestFields.generate_sampling, "sampling_params.");
  const prompt = readPrompt(body.token_ids, "body.token_ids", model);
  const sampling = readSampling(params, "sampling_params.", model.eosTokenIds);
  const id = headerId ?? readText(body, "request_id") ?? randomBytes(8).toString("hex");
  return {
    id: `generate-tokens-${id}`,
    prompt,
    sampling,
    seed: sampling.seed ?? context.nextSeed(),
    maxTokens: sampling.maxTokens ?? model.maxModelLen - prompt.length,
    cacheSalt: readSalt(body),
    tokenizer: null,
    tokenTexts: false,
    logprobs: params.logprobs === 0,
    withText: body.output_mode === "text",
    returnTokenIds: readFlag(body, "return_token_ids", false),
    ...readStreamOptions(body),
  };
}

function answering(call: GenerateCall, model: ServedModel): Answering {
  const mode = `"output_mode":"${call.withText ? "text" : "tokens"}"`;
  if (!call.stream) return { whole: (choices) => encodeWhole(call, choices, model, mode) };
  const chunk = (usage: unknown, choices: string) =>
    `{"request_id":${JSON.stringify(call.id)},"usage":${JSON.stringify(usage)},${mode},"choices":[${choices}]}`;
  return {
    opening: [],
    delta: (choice, from, to, finish) => chunk(null, encodeChoice(call, choice, from, to, finish !== null)),
    usage: call.includeUsage ? (choices) => chunk(usageOf(call, choices), "") : null,
  };
}

function usageOf({ prompt }: GenerateCall, choices: Choice[]) {
  const completion_tokens = choices.reduce((sum, { output }) => sum + output.tokenIds.length, 0);
  return { prompt_tokens: prompt.length, total_tokens: prompt.length + completion_tokens, completion_tokens };
}

/** Keys as of vLLM 0.32. Built by hand: the server's hot path. */
async function encodeWhole(call: GenerateCall, choices: Choice[], model: ServedModel, mode: string): Promise<string> {
  const usage = { ...usageOf(call, choices), prompt_tokens_details: null, completion_tokens_details: null };
  const promptLogprobs = JSON.stringify(await encodePromptLogprobs(call, choices[0]!));
  const promptIds = call.withText && call.returnTokenIds ? `[${call.prompt.join()}]` : "null";
  const encoded = choices.map((choice) => encodeChoice(call, choice, 0, choice.output.tokenIds.length, true));
  return (
    `{"request_id":${JSON.stringify(call.id)},"model":${JSON.stringify(model.name)},"created":${createdNow()},` +
    `"usage":${JSON.stringify(usage)},"prompt_logprobs":${promptLogprobs},"prompt_token_id_logprobs":null,` +
    `"prompt_token_ids":${promptIds},"mm_placeholders":null,"metrics":null,"kv_transfer_params":null,` +
    `"ec_transfer_params":null,${mode},"choices":[${encoded.join()}]}`
  );
}

/** vLLM's form: null for the first token, then maps of one id; the sampler does not rank. */
async function encodePromptLogprobs({ prompt, tokenizer }: GenerateCall, { output: { promptLogprobs } }: Choice) {
  if (promptLogprobs === null) return null;
  const texts = await tokenizer!.decodeBatch(Array.from(prompt, (id) => [id]));
  return Array.from(prompt, (id, index) => {
    const score = { logprob: promptLogprobs[index], rank: null, decoded_token: texts[index] };
    return index === 0 ? null : { [id]: score };
  });
}

function encodeChoice(call: GenerateCall, choice: Choice, from: number, to: number, isLast: boolean): string {
  const { output, text } = choice;
  const ids = output.tokenIds.slice(from, to);
  const reason = isLast ? JSON.stringify(stopReasonOf(choice, call.sampling)) : "null";
  const versions = isLast ? output.versions : null;
  const content = ids.map((id, index) => {
    const entry = `{"token_id":${id},"logprob":${output.logprobs[from + index]},"rank":null`;
    return `${entry},"top_logprobs":[${entry}}]}`;
  });
  const shown = call.withText ? `"text":${JSON.stringify(text!.release(isLast))},` : "";
  const withIds = !call.withText || call.returnTokenIds;
  return (
    `{"index":${choice.index},"finish_reason":${isLast ? `"${output.finish}"` : "null"},"stop_reason":${reason},` +
    `"token_ids":${withIds ? `[${ids.join()}]` : "null"},"routed_experts":null,"sampling_mask":null,` +
    `"weight_versions":${JSON.stringify(versions)},${shown}` +
    `"logprobs":${call.logprobs ? `{"content":[${content.join()}]}` : "null"}}`
  );
}

import { randomBytes } from "node:crypto";
import type { FastifyInstance } from "fastify";
import { readFields, requestFields } from "../../agents/wires/fields.ts";
import { isObject } from "../../data/config-json.ts";
import { type Answering, createdNow, readBody, respond, type ServerContext } from "./answers.ts";
import { type Choice, stopReasonOf } from "./choices.ts";
import { encodeRoutes } from "./expert-routes.ts";
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

type GenerateCall = Awaited<ReturnType<typeof readCall>>;

/** vLLM's tokens in and tokens out (reference: vllm.md, section 1). */
export function addGenerate(app: FastifyInstance, context: ServerContext): void {
  app.post("/inference/v1/generate", async (http, reply) => {
    const call = await readCall(http.body, http.headers["x-request-id"] as string | undefined, context);
    await respond(reply, context, call, answering(call, context.model));
  });
}

async function readCall(value: unknown, headerId: string | undefined, context: ServerContext) {
  const { model } = context;
  const body = readBody(value, "generate", model);
  const params = body.sampling_params;
  if (params === undefined) throw validation("body.sampling_params", "missing", "Field required");
  if (!isObject(params)) throw validation("body.sampling_params", "dict_type", "Input should be a valid dictionary");
  readFields(params, requestFields.generate_sampling, "sampling_params.");
  const prompt = readPrompt(body.token_ids, "body.token_ids", model);
  const sampling = readSampling(params, "sampling_params.", model.eosTokenIds);
  const id = headerId ?? readText(body, "request_id") ?? randomBytes(8).toString("hex");
  const withText = body.output_mode === "text";
  const needsText = withText || sampling.promptLogprobs || sampling.stop.length > 0;
  return {
    id: `generate-tokens-${id}`,
    prompt,
    sampling,
    cacheSalt: readSalt(body),
    tokenizer: needsText ? await context.tokenizer() : null,
    tokenTexts: false,
    logprobs: params.logprobs === 0,
    withText,
    returnTokenIds: readFlag(body, "return_token_ids", false),
    ...readStreamOptions(body),
  };
}

/** Keys as of vLLM 0.32. */
function answering(call: GenerateCall, model: ServedModel): Answering {
  const { id: request_id, withText } = call;
  const output_mode = withText ? "text" : "tokens";
  return {
    whole: async (choices) => ({
      request_id,
      model: model.name,
      created: createdNow(),
      usage: { ...usageOf(call, choices), prompt_tokens_details: null, completion_tokens_details: null },
      prompt_logprobs: await encodePromptLogprobs(call, choices[0]!),
      prompt_token_id_logprobs: null,
      prompt_token_ids: withText && call.returnTokenIds ? [...call.prompt] : null,
      mm_placeholders: null,
      metrics: null,
      kv_transfer_params: null,
      ec_transfer_params: null,
      output_mode,
      choices: choices.map((choice) => encodeChoice(call, model, choice, 0, choice.output.tokenIds.length, true)),
    }),
    opening: () => [],
    delta: (choice, from, to, finish) => {
      const choices = [encodeChoice(call, model, choice, from, to, finish !== null)];
      return { request_id, usage: null, output_mode, choices };
    },
    usage: call.includeUsage
      ? (choices) => ({ request_id, usage: usageOf(call, choices), output_mode, choices: [] })
      : null,
  };
}

function usageOf({ prompt }: GenerateCall, choices: Choice[]) {
  const completion_tokens = choices.reduce((sum, { output }) => sum + output.tokenIds.length, 0);
  return { prompt_tokens: prompt.length, total_tokens: prompt.length + completion_tokens, completion_tokens };
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

function encodeChoice(
  call: GenerateCall,
  { moe }: ServedModel,
  choice: Choice,
  from: number,
  to: number,
  isLast: boolean,
) {
  const { output, text } = choice;
  const hasRoutes = isLast && moe && output.routes.positions > 0;
  const token_ids = output.tokenIds.slice(from, to);
  const content = token_ids.map((token_id, at) => {
    const entry = { token_id, logprob: output.logprobs[from + at], rank: null };
    return { ...entry, top_logprobs: [entry] };
  });
  return {
    index: choice.index,
    finish_reason: isLast ? output.finish : null,
    stop_reason: isLast ? stopReasonOf(choice, call.sampling) : null,
    token_ids: !call.withText || call.returnTokenIds ? token_ids : null,
    routed_experts: hasRoutes ? encodeRoutes(output.routes, moe) : null,
    sampling_mask: null,
    weight_versions: isLast ? output.versions : null,
    ...(call.withText && { text: text!.release(isLast) }),
    logprobs: call.logprobs ? { content } : null,
  };
}

import { messageOf, RunnerError } from "../../errors.ts";
import { indented } from "../../lists.ts";
import { type EngineClient, EngineError } from "../client.ts";

/** The first request compiles what others find there. */
const firstSeconds = 300;
/** Nats that the two likeliest tokens must be apart to tell what temperature makes of them. */
const clearGap = 1e-3;

/** Rejects with all that a vLLM server lacks, and the flag that brings it. It has then sampled for the first time. */
export async function probeVllm(client: EngineClient, url: string): Promise<void> {
  const call = { timeoutSeconds: firstSeconds };
  const lacks: string[] = [];
  const has = async (ask: Promise<unknown>, lack: string) => {
    const error = await ask.then(
      () => null,
      (reason) => reason,
    );
    if (error === null) return true;
    if (!(error instanceof EngineError) || error.status !== 404) throw error;
    lacks.push(lack);
    return false;
  };
  const version = await client.version(url, call);
  await has(
    client.weightVersion(url, call),
    "its control routes (/weight_info, /pause, …): set VLLM_SERVER_DEV_MODE=1 in its environment; vLLM 0.27 or newer",
  );
  const samples = await has(
    topGap(client, url, 1),
    "/inference/v1/generate: start it with --enable-scale-out (or, before there was that flag, with " +
      "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1)",
  );
  if (samples && !(await isAfterTemperature(client, url))) {
    lacks.push("log-probabilities after temperature: start it with --logprobs-mode processed_logprobs");
  }
  if (lacks.length > 0) throw new RunnerError(`engine ${url} (vLLM ${version}) lacks${indented(lacks)}`);
}

/** Halving the temperature doubles what lies between two tokens, unless they are told as before it. */
async function isAfterTemperature(client: EngineClient, url: string): Promise<boolean> {
  const [warm, cold] = [await topGap(client, url, 1), await topGap(client, url, 0.5)];
  return warm < clearGap || cold > 1.5 * warm;
}

/** Three are asked for, since the sampled one is among them. */
async function topGap(client: EngineClient, url: string, temperature: number): Promise<number> {
  const sampling = { temperature, max_tokens: 1, logprobs: 3, seed: 0, detokenize: false };
  const reply = await client.ask(
    url,
    { token_ids: [1, 2, 3, 4], sampling_params: sampling },
    { timeoutSeconds: firstSeconds },
  );
  try {
    const [{ top_logprobs: top }] = (reply as Reply).choices[0].logprobs.content;
    const [first, second] = top.map(({ logprob }) => logprob).sort((a, b) => b - a) as [number, number];
    return first - second;
  } catch (error) {
    throw new EngineError(url, `answers without log-probabilities of the likeliest tokens: ${messageOf(error)}`);
  }
}

interface Reply {
  choices: [{ logprobs: { content: [{ top_logprobs: { logprob: number }[] }] } }];
}

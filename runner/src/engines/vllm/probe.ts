import { messageOf, RunnerError } from "../../errors.ts";
import { indented } from "../../lists.ts";
import { type EngineClient, EngineError, toReplica } from "../client.ts";

/** The first request compiles what others find there. */
const firstSeconds = 300;
/** Nats that the two likeliest tokens must be apart to tell what temperature makes of them. */
const clearGap = 1e-3;

/** What a run asks of a server beyond what all do. */
export interface VllmNeeds {
  /** `vllm.sync_backend` is nccl. */
  nccl: boolean;
  /** `vllm.data_parallel_size`. */
  replicas: number;
}

/** Rejects with all that a vLLM server lacks, and the flag that brings it. It has then sampled for the first time. */
export async function probeVllm(client: EngineClient, url: string, { nccl, replicas }: VllmNeeds): Promise<void> {
  const call = { timeoutSeconds: firstSeconds };
  const lacks: string[] = [];
  const has = async (ask: Promise<unknown>, lack: string, refusal = 404) => {
    const error = await ask.then(
      () => null,
      (reason) => reason,
    );
    if (error === null) return true;
    if (!(error instanceof EngineError) || error.status !== refusal) throw error;
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
  if (samples && replicas > 1) {
    const last = { ...call, headers: toReplica(replicas - 1) };
    const fix = `start it with --data-parallel-size ${replicas}, or set vllm.data_parallel_size to what it has`;
    await has(client.ask(url, oneToken(1), last), `${replicas} replicas: ${fix}`, 400);
  }
  const backend = nccl ? await client.transferBackend(url, call) : undefined;
  if (backend !== undefined && backend !== "nccl") {
    lacks.push(`weight transfers over NCCL: start it with --weight-transfer-config '{"backend": "nccl"}'`);
  }
  if (lacks.length > 0) throw new RunnerError(`engine ${url} (vLLM ${version}) lacks${indented(lacks)}`);
}

/** Halving the temperature doubles what lies between two tokens, unless they are told as before it. */
async function isAfterTemperature(client: EngineClient, url: string): Promise<boolean> {
  const [warm, cold] = [await topGap(client, url, 1), await topGap(client, url, 0.5)];
  return warm < clearGap || cold > 1.5 * warm;
}

/** Three log-probabilities are asked for, since the sampled token's is among them. */
function oneToken(temperature: number): object {
  const sampling = { temperature, max_tokens: 1, logprobs: 3, seed: 0, detokenize: false };
  return { token_ids: [1, 2, 3, 4], sampling_params: sampling };
}

async function topGap(client: EngineClient, url: string, temperature: number): Promise<number> {
  const reply = await client.ask(url, oneToken(temperature), { timeoutSeconds: firstSeconds });
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

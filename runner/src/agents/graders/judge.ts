import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../../deadline.ts";
import { messageOf } from "../../errors.ts";
import { RolloutFailure } from "../rollout.ts";
import { spoken } from "./text.ts";

export interface JudgeOptions {
  /** Up to and with `/v1`: its `/chat/completions` is asked. */
  url: string;
  model: string;
  /** The environment variable that holds the key; none is sent without. */
  keyVariable?: string;
  prompt(answer: string, label: unknown): string;
  /** Of the judge's reply (its last number); NaN says that it holds none. */
  score?(said: string): number;
  /** Seconds of one request (60). */
  timeout?: number;
}

const tries = 3;
const lastNumber = (said: string) => Number(said.match(/-?\d+(?:\.\d+)?/g)?.at(-1) ?? Number.NaN);

/** The number that a model says of a reply. A judge that cannot be reached, or says none, is a failure, never 0. */
export function judge({ url, model, keyVariable = "", prompt, score = lastNumber, timeout = 60 }: JudgeOptions) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${process.env[keyVariable] ?? "none"}` };
  return async (text: string, label: unknown): Promise<number> => {
    const messages = [{ role: "user", content: prompt(spoken(text), label) }];
    const request = { method: "POST", headers, body: JSON.stringify({ model, temperature: 0, messages }) };
    for (let attempt = 1; ; attempt++) {
      try {
        const signal = AbortSignal.timeout(deadlineMs(timeout));
        const response = await fetch(`${url}/chat/completions`, { ...request, signal });
        const body = await response.text();
        const said: string | null = response.ok ? JSON.parse(body).choices[0].message.content : null;
        const value = said ? score(said) : Number.NaN;
        if (Number.isFinite(value)) return value;
        throw new Error(`no score in HTTP ${response.status}: ${(said ?? body).slice(-200)}`);
      } catch (error) {
        if (attempt === tries) throw new RolloutFailure("reward", `the judge ${model} at ${url}: ${messageOf(error)}`);
        await sleep(250 * 2 ** attempt);
      }
    }
  };
}

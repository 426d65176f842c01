/** An engine whose replies are written down, and what the gateway must have kept of them. */
import assert from "node:assert/strict";
import type { RolloutContext, RolloutLimits } from "../../src/agents/rollout.ts";
import { Mask, type Rollout } from "../../src/agents/types.ts";
import type { Tokenizer } from "../../src/data/tokenizer.ts";
import type { GenerateRequest, GenerateResult } from "../../src/engines/types.ts";

/** The reply to a prompt, as text. */
export type Answer = (prompt: string) => string;

/** What was asked of it, and what it sampled. */
interface Call {
  promptIds: ArrayLike<number>;
  tokenIds: number[];
  logprobs: number[];
}

export class ScriptedEngine {
  /** By request id. */
  readonly calls = new Map<string, Call>();
  private readonly tokenizer: Tokenizer;
  private readonly answer: Answer;
  private sampled = 0;

  constructor(tokenizer: Tokenizer, answer: Answer) {
    this.tokenizer = tokenizer;
    this.answer = answer;
  }

  context(limits: RolloutLimits): RolloutContext {
    return {
      runId: "run",
      seed: 1,
      tokenizer: this.tokenizer,
      limits,
      router: { acquire: async () => ({ url: "http://engine", engine: 0, version: 0, release: () => {} }) },
      generate: (_, request) => this.generate(request),
      locate: () => undefined,
    };
  }

  /** No token has another's log-probability, so that each can be found again. */
  private async generate({ requestId, tokenIds: promptIds }: GenerateRequest): Promise<GenerateResult> {
    const text = this.answer(await this.tokenizer.decode([...promptIds]));
    const tokenIds = [...(await this.tokenizer.encode(text)), this.tokenizer.stopTokenIds[0]!];
    const logprobs = tokenIds.map(() => -1 - this.sampled++);
    this.calls.set(requestId, { promptIds, tokenIds, logprobs });
    return { tokenIds, logprobs, versions: tokenIds.map(() => 0), stop: "stop" };
  }

  /**
   * Invariant 1: each sampled token is once in the rows, trained or rejected, beside its own log-probability and after
   * exactly the ids that it was sampled from. Returns how many were rejected.
   */
  check({ segments }: Rollout): number {
    const found = new Map<number, number>();
    let rejected = 0;
    for (const { tokens, mask, logprobs, turns } of segments) {
      for (const { callId, start, end } of turns) {
        const call = this.calls.get(callId)!;
        assert.deepEqual([...tokens.subarray(0, start)], Array.from(call.promptIds), `the prompt of ${callId}`);
        assert.deepEqual([...tokens.subarray(start, end)], call.tokenIds, `the reply of ${callId}`);
        assert.deepEqual([...logprobs.subarray(start, end)], call.logprobs, `log-probabilities of ${callId}`);
      }
      for (const [at, value] of mask.entries()) {
        if (value !== Mask.trained && value !== Mask.rejected) continue;
        assert.ok(!found.has(logprobs[at]!), `token ${at} of a row is there twice`);
        found.set(logprobs[at]!, tokens[at]!);
        if (value === Mask.rejected) rejected++;
      }
    }
    const sampled = [...this.calls.values()].flatMap(({ tokenIds, logprobs }) =>
      tokenIds.map((id, at) => [logprobs[at]!, id] as const),
    );
    const inOrder = [...found].sort(([one], [other]) => other - one);
    assert.deepEqual(
      inOrder,
      sampled.sort(([one], [other]) => other - one),
      "the sampled tokens",
    );
    return rejected;
  }
}

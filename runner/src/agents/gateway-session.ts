import { createHash, randomBytes } from "node:crypto";
import type { ToolSchema } from "../data/chat-template.ts";
import { withDeadline } from "../deadline.ts";
import { keepPartial } from "../engines/client.ts";
import { messageOf } from "../errors.ts";
import type { ModelCalls, ModelReply } from "./model-calls.ts";
import type { ParsedReply } from "./parsers/reply.ts";
import { RolloutFailure } from "./rollout.ts";
import type { PendingTurn, ServedTurn } from "./trajectory.ts";
import type { Message, StopReason } from "./types.ts";
import { type WireChoice, WireError, type WireReply, type WireRequest } from "./wires/types.ts";

/** As the model's template lays it out; without tools calls stay text. */
export type ParseReply = (text: string, tools: ToolSchema[] | null) => ParsedReply;

/** One answer, in work or made: every connection that asks for it gets the same. */
export interface Served {
  request: WireRequest;
  /** Once it is known to fit. */
  prompt: Promise<PendingTurn>;
  reply: Promise<WireReply>;
  controller: AbortController;
  /** Connections that wait for it. */
  waiting: number;
  /** Those in work or made, of an earlier try too. */
  choices: Promise<WireChoice>[];
  turns: ServedTurn[];
}

/** For engines to say what they have sampled for nobody. */
const partSeconds = 5;

export class GatewaySession {
  readonly id = randomBytes(18).toString("base64url");
  /** Why the latest request that got no reply got none; null again when one gets a reply. */
  stop: StopReason | null = null;
  /** What the policy did not cause: the rollout counts for nothing. */
  failure: RolloutFailure | null = null;
  /** Marks of tool calls after which no call could be read, where tools were given; else null. */
  unreadCalls: number | null = null;
  private readonly served = new Map<string, Served>();
  private requests = 0;

  constructor(
    readonly calls: ModelCalls,
    private readonly parseReply: ParseReply,
  ) {}

  /**
   * The answer to a request. The same request again, `key`, gets the same answer while that is in work or has not
   * reached anybody, and where the client says that it asks again.
   */
  ask(key: string, isRetry: boolean, request: WireRequest): Served {
    const before = this.served.get(key);
    const isDelivered = before?.turns.some((turn) => turn.isDelivered);
    if (before && !before.controller.signal.aborted && (isRetry || !isDelivered)) return before;
    const prompt = this.prepare(request);
    const reply = prompt.then((pending) => this.generate(served, pending));
    const made = { choices: before?.choices ?? [], turns: [] };
    const served: Served = { request, prompt, reply, controller: new AbortController(), waiting: 0, ...made };
    // A choice that failed ends the others, and the next request begins anew.
    reply.catch(() => served.controller.abort());
    this.served.set(key, served);
    return served;
  }

  deliver({ controller, turns }: Served): void {
    if (controller.signal.aborted) return;
    for (const turn of turns) turn.isDelivered = true;
  }

  async toIds({ prompt, messages, tools, toolChoice }: WireRequest): Promise<PendingTurn> {
    const { session, context } = this.calls;
    try {
      const pending = Array.isArray(prompt) ? session.prepareTokens(prompt) : null;
      // Stored ids may be of a model that has more of them than its tokenizer.
      const unknown = pending?.contextIds.find((id) => id >= context.tokenizer.vocabSize);
      if (unknown !== undefined) throw new Error(`token id ${unknown} is not in the vocabulary`);
      if (pending) return pending;
      if (typeof prompt === "string") return await session.prepareText(prompt);
      return await session.prepare(messages, toolChoice === "auto" && tools.length > 0 ? tools : undefined);
    } catch (error) {
      throw new WireError(400, messageOf(error));
    }
  }

  /** The agent has ended: nobody waits for what is still in work. */
  async endCalls(): Promise<void> {
    for (const { controller } of this.served.values()) controller.abort(keepPartial);
    const ended = Promise.allSettled([...this.served.values()].flatMap(({ choices }) => choices));
    await withDeadline(ended, partSeconds, "engines to end requests").catch(() => {});
  }

  end(): void {
    for (const { controller } of this.served.values()) controller.abort();
    this.served.clear();
  }

  private async prepare(request: WireRequest): Promise<PendingTurn> {
    const { maxLen, maxRequests } = this.calls.context.limits;
    if (this.failure) throw new WireError(500, this.failure.message);
    if (this.requests++ >= maxRequests) {
      this.stop = "max_turns";
      throw new WireError(429, `this rollout has made its ${maxRequests} requests (rollout.max_requests)`);
    }
    const pending = await this.toIds(request);
    if (pending.parent?.isDelivered) this.forget(pending.parent);
    if (this.calls.room(pending) >= 1) return pending;
    this.stop = "context";
    // In the words by which clients of either kind know it.
    const known = `prompt is too long: ${pending.tokenIds.length} tokens > ${maxLen - 1} maximum`;
    throw new WireError(400, `${known}; this model's maximum context length is ${maxLen} tokens`);
  }

  /** Whoever goes on from an answer has it: kept for a retry, answers would take the square of a session's length. */
  private forget(turn: ServedTurn): void {
    for (const [key, { turns }] of this.served) if (turns.includes(turn)) this.served.delete(key);
  }

  private async generate(served: Served, pending: PendingTurn): Promise<WireReply> {
    const { n, model } = served.request;
    const one = async () => this.commit(served, pending, await this.sample(served, pending));
    const own = Array.from({ length: n }, one);
    served.choices.push(...own);
    const choices = await Promise.all(own);
    this.stop = null;
    const created = Math.floor(Date.now() / 1000);
    return { id: randomBytes(12).toString("hex"), created, model, promptTokenIds: pending.tokenIds, choices };
  }

  private async sample({ request, controller }: Served, pending: PendingTurn): Promise<ModelReply> {
    try {
      const reply = await this.calls.sample(pending, { ...request, signal: controller.signal });
      if (reply) return reply;
    } catch (error) {
      if (error instanceof RolloutFailure && error.reason !== "aborted") this.failure = error;
      throw new WireError(500, messageOf(error));
    }
    this.stop = "timeout";
    throw new WireError(408, "the time of this rollout is up (rollout.timeout)");
  }

  /** Stores the reply as nobody's yet, and takes its text apart, unless they have all gone. */
  private async commit(
    { request, turns, controller }: Served,
    pending: PendingTurn,
    { sampled, info }: ModelReply,
  ): Promise<WireChoice> {
    const { session, context } = this.calls;
    if (controller.signal.aborted) {
      session.commit(pending, sampled, null, info).isDelivered = false;
      throw new WireError(500, "the connection is gone");
    }
    const { tokenIds, stopString = null } = sampled;
    const whole = await session.textOf(sampled);
    const text = stopString === null ? whole : whole.slice(0, whole.lastIndexOf(stopString));
    const place = `${pending.messageCount} ${tokenIds}`;
    const { content, reasoning, toolCalls } = this.parse(request, text, place);
    const message: Message = {
      role: "assistant",
      content,
      ...(reasoning !== null && { reasoning_content: reasoning }),
      ...(toolCalls.length > 0 && { tool_calls: toolCalls }),
    };
    const turn = session.commit(pending, sampled, request.prompt === null ? message : null, info);
    turn.isDelivered = false;
    turns.push(turn);
    const texts = request.logprobs ? await context.tokenizer.decodeBatch(tokenIds.map((id) => [id])) : null;
    const logprobs = texts?.map((token, at) => ({ token, logprob: sampled.logprobs[at]! })) ?? null;
    return { content, reasoning, toolCalls, stop: info.stop, stopString, tokenIds, logprobs };
  }

  private parse({ prompt, tools, toolChoice }: WireRequest, text: string, place: string) {
    if (prompt !== null) return { content: text, reasoning: null, toolCalls: [] };
    // Where nobody asked for calls, what looks like one is text.
    const wantsCalls = tools.length > 0 && toolChoice === "auto";
    const { content, reasoning, toolCalls, unread } = this.parseReply(text, wantsCalls ? tools : null);
    if (wantsCalls) this.unreadCalls = (this.unreadCalls ?? 0) + unread;
    // Nine letters or digits, as Mistral's templates want them; the same in a replay, whose prompts hold them.
    const id = (at: number) => createHash("sha256").update(`${place} ${at}`).digest("hex").slice(0, 9);
    return { content, reasoning, toolCalls: toolCalls.map((call, at) => ({ ...call, id: id(at) })) };
  }
}

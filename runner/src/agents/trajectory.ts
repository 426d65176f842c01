import { isDeepStrictEqual } from "node:util";
import type { ToolSchema } from "../data/chat-template.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { type Routes, routesFrom } from "../engines/routes.ts";
import type { GenerateResult } from "../engines/types.ts";
import { Mask, type Message, type Segment, type ToolCall, type Turn } from "./types.ts";

/** A request that was turned into ids, on its way to an engine. It changes nothing until it is committed. */
export interface PendingTurn {
  /** The whole prompt: stored ids, then the new context. */
  tokenIds: number[];
  /** The served turn that this one follows; null begins a segment. */
  parent: ServedTurn | null;
  contextIds: number[];
  /** What the request's text adds to its parent's, with the opening of the reply; null where it came as ids. */
  text: string | null;
  /** Of a request that came as messages; else null. */
  messageCount: number | null;
  /** These, as JSON without its end: by it a request is found to go on from a leaf, without a walk through the tree. */
  asked?: string;
}

export type TurnInfo = Omit<Turn, "start" | "end">;

/** A request and its reply: a node of the session's tree. */
export interface ServedTurn extends Omit<PendingTurn, "tokenIds"> {
  /** As `asked`, until a turn goes on from this one. */
  tokenIds?: number[];
  /** The segment's first turn; null of that itself. */
  root: ServedTurn | null;
  sampled: GenerateResult;
  /** Made when a request comes that may follow. */
  sampledText: string | null;
  /** What the reply says, to find it again in a request. */
  echo: string | null;
  /** Whether the segment, but for its beginning, shows thoughts, which templates drop later. */
  thinks: boolean;
  info: TurnInfo;
  /** A reply that reached nobody was sampled and thrown away. */
  isDelivered: boolean;
}

type Found = [turn: ServedTurn | null, end: number];

/**
 * All model calls of one rollout, as a tree. A request that echoes a served reply, and whose rendering (or text, or
 * ids) goes on from that turn's, extends it: stored ids stand for the reply, and only what comes after is tokenized.
 * Any other begins a segment. Sampled ids are never made from text again, nor compared with it.
 */
export class Session {
  readonly turns: ServedTurn[] = [];
  /** Replies as they were served, by place and content: what an echo leaves out (thoughts, 1.0 for 1) is put back. */
  private readonly served = new Map<string, Message>();
  /** By what a request adds: up to which length its rendering was the same without what lies between; -1 if not. */
  private readonly proven = new Map<string, number>();

  constructor(private readonly tokenizer: Tokenizer) {}

  /**
   * Where a request goes on from a leaf, the segment's beginning, the last reply and what is new are rendered, without
   * what lies between. Whether that makes a difference is tried at the first request of a kind, and each time that it
   * is four times as long; a kind in which it does is rendered whole.
   */
  async prepare(given: Message[], tools?: ToolSchema[]): Promise<PendingTurn> {
    const asked = JSON.stringify(given).slice(0, -1);
    const leaf = this.turns.findLast(({ asked: before, messageCount, echo }) => {
      const reply = before !== undefined && isAt(asked, before) && given[messageCount!];
      return reply && echo !== null && echoOf(reply) === echo;
    });
    const roles = given.slice(leaf?.messageCount ?? 0).map(({ role }) => role);
    const kind = [leaf?.thinks, ...roles].join();
    const proven = this.proven.get(kind) ?? 0;
    // At a user's word templates drop thoughts, whichever replies had some.
    const isLost = leaf?.thinks && roles.includes("user");
    if (!leaf?.parent || isLost || proven < 0 || !this.tokenizer.repeatsRounds)
      return this.rendered(given, asked, tools);
    // What the template refuses in this form it may take whole.
    const short = await this.rendered(given, asked, tools, leaf).catch(() => null);
    if (short?.parent === leaf && given.length < 4 * proven) return short;
    const whole = await this.rendered(given, asked, tools);
    this.proven.set(kind, isDeepStrictEqual(short, whole) ? given.length : -1);
    return whole;
  }

  /** A prompt that is text: it goes on from a stored turn when it begins with that turn's request and reply. */
  prepareText(text: string): Promise<PendingTurn> {
    const request = { messageCount: null };
    return this.pending(text, request, this.withText(text), (turn, at) => this.afterReply(turn, at, text));
  }

  /** A prompt that is ids: it goes on from the longest stored path that it begins with. */
  prepareTokens(tokenIds: number[]): PendingTurn {
    const areAt = (part: number[], at: number) => part.every((id, index) => tokenIds[at + index] === id);
    const [[parent, length]] = this.find(({ contextIds, sampled }, at) => {
      const start = at + contextIds.length;
      const end = start + sampled.tokenIds.length;
      return areAt(contextIds, at) && areAt(sampled.tokenIds, start) ? end : null;
    });
    return { parent, contextIds: tokenIds.slice(length), tokenIds, text: null, messageCount: null };
  }

  /** The reply's text, without the token that ended it. */
  async textOf({ tokenIds, stop }: GenerateResult): Promise<string> {
    const ended = stop === "stop" && this.tokenizer.stopTokenIds.includes(tokenIds.at(-1) ?? -1);
    return this.tokenizer.decode(ended ? tokenIds.slice(0, -1) : tokenIds);
  }

  /** Stores a reply; `message` is what the agent was given for it, which it will echo. */
  commit(pending: PendingTurn, given: GenerateResult, message: Message | null, info: TurnInfo): ServedTurn {
    this.check(given);
    const { parent, asked } = pending;
    // Those before are its parents': the last of them sampled this request's first position.
    const known = Math.max(0, pending.tokenIds.length - pending.contextIds.length - 1);
    const sampled = given.routes ? { ...given, routes: routesFrom(given.routes, known) } : given;
    const root = parent && (parent.root ?? parent);
    const echo = message && echoOf(message);
    const said = `${parent && asked?.slice(parent.asked?.length)}${JSON.stringify(message)}`;
    const thinks = parent?.thinks || /think>|"reasoning_content":/.test(said);
    const turn: ServedTurn = { ...pending, root, sampled, sampledText: null, echo, thinks, info, isDelivered: true };
    this.turns.push(turn);
    if (message) this.served.set(`${pending.messageCount} ${echo}`, message);
    if (parent) Object.assign(parent, { isDelivered: true, asked: undefined, tokenIds: undefined });
    return turn;
  }

  /** Throws at what an engine must not say: no token, arrays of other lengths, no probability. */
  check({ tokenIds, logprobs, versions }: GenerateResult): void {
    const lengths = [tokenIds.length, logprobs.length, versions.length];
    if (tokenIds.length === 0) throw new Error("the engine's reply holds no token");
    if (new Set(lengths).size > 1) {
      throw new Error(`the engine gave ${lengths[0]} ids, ${lengths[1]} log-probabilities, ${lengths[2]} versions`);
    }
    const bad = logprobs.findIndex((logprob) => !Number.isFinite(logprob));
    if (bad >= 0) throw new Error(`the engine gave the log-probability ${logprobs[bad]} for token ${bad} of its reply`);
  }

  /** One row a leaf. A sampled token is trained in the first row that holds it, and shared prefix in the others. */
  toSegments(): Segment[] {
    const claimed = new Set<ServedTurn>();
    const parents = new Set(this.turns.map(({ parent }) => parent));
    return this.turns.filter((turn) => !parents.has(turn)).map((leaf) => toSegment(leaf, claimed));
  }

  /** With a leaf, as if its reply were the segment's only one: it goes on from that, or is of no use. */
  private async rendered(given: Message[], asked: string, tools?: ToolSchema[], leaf: ServedTurn | null = null) {
    const root = leaf?.root;
    const isKept = (at: number) => !root || at < root.messageCount! || at >= leaf!.messageCount!;
    const messages = given.flatMap((message, at) => (isKept(at) ? [this.restored(message, at)] : []));
    const text = this.tokenizer.renderChat(messages, { tools, addGenerationPrompt: true });
    const found: Found[] = root && isAt(text, root.text!) ? [[leaf, root.text!.length]] : [];
    const request = { messageCount: given.length, asked };
    return this.pending(text, request, root ? found : this.withText(text), async (turn, at) => {
      const { messageCount: count, echo } = turn;
      if (count === null || echo === null || !given[count] || echoOf(given[count]) !== echo) return null;
      return this.afterReply(turn, at, text, messages.slice(0, (root?.messageCount ?? count) + 1), tools);
    });
  }

  /** As it was served. */
  private restored(message: Message, at: number): Message {
    return message.role === "assistant" ? (this.served.get(`${at} ${echoOf(message)}`) ?? message) : message;
  }

  /** Goes on from the first stored part that it can, or begins a segment. */
  private async pending(
    rendered: string,
    request: Pick<PendingTurn, "messageCount" | "asked">,
    found: Found[],
    newText: (turn: ServedTurn, at: number) => Promise<string | null>,
  ): Promise<PendingTurn> {
    for (const [parent, at] of found) {
      const after = parent && (await newText(parent, at));
      if (!parent || after === null) continue;
      const contextIds = await this.tokenizer.encode(after);
      const path = parent.tokenIds ? [parent] : pathOf(parent);
      const stored = path.flatMap((turn) => [turn.tokenIds ?? turn.contextIds, turn.sampled.tokenIds]);
      const tokenIds = ([] as number[]).concat(...stored, contextIds);
      // A copy: a slice would hold on to the whole rendering.
      return { ...request, text: structuredClone(rendered.slice(at)), parent, contextIds, tokenIds };
    }
    const contextIds = await this.tokenizer.encodeRendered(rendered);
    return { ...request, text: rendered, parent: null, contextIds, tokenIds: contextIds };
  }

  private withText(whole: string): Found[] {
    return this.find(({ text }, at) => (text !== null && isAt(whole, text, at) ? at + text.length : null));
  }

  /**
   * Turns from whose whole path a request goes on, at last none; longest first, of equal ones that which reached
   * somebody. `endOf` says where a turn that begins at a place ends, null where it does not fit.
   */
  private find(endOf: (turn: ServedTurn, at: number) => number | null): [Found, ...Found[]] {
    const ends = new Map<ServedTurn | null, number>([[null, 0]]);
    // A turn is stored after its parent.
    for (const turn of this.turns) {
      const at = ends.get(turn.parent);
      const end = at === undefined ? null : endOf(turn, at);
      if (end !== null) ends.set(turn, end);
    }
    const rank = ([turn, end]: Found) => end + (turn?.isDelivered ? 0.5 : 0);
    return [...ends].sort((one, other) => rank(other) - rank(one)) as [Found, ...Found[]];
  }

  /**
   * What follows the turn's reply, where `rendered` shows that at `at` as it was sampled, or, given the messages up to
   * it, in other words (trimmed, a call laid out anew): the template's own end of turn then tells where it ends.
   */
  private async afterReply(
    turn: ServedTurn,
    at: number,
    rendered: string,
    messages?: Message[],
    tools?: ToolSchema[],
  ): Promise<string | null> {
    turn.sampledText ??= await this.tokenizer.decode(turn.sampled.tokenIds);
    const text = turn.sampledText;
    if (isAt(rendered, text, at)) return rendered.slice(at + text.length);
    const stored = messages && this.tokenizer.renderChat(messages, { tools });
    if (!stored || !isAt(rendered, stored)) return null;
    const reply = stored.slice(at);
    const closers = this.tokenizer.stopTexts;
    const end = Math.max(...closers.map((closer) => reply.lastIndexOf(closer)));
    if (end < 0) return null;
    const closer = closers.find((one) => reply.startsWith(one, end))!;
    return rendered.slice(at + end + (text.endsWith(closer) ? closer.length : 0));
  }
}

/** `startsWith`, at a hundredth of its time where texts are long. */
function isAt(text: string, part: string, at = 0): boolean {
  return text.slice(at, at + part.length) === part;
}

/** From the segment's first turn. */
function pathOf(leaf: ServedTurn | null): ServedTurn[] {
  const path: ServedTurn[] = [];
  for (let turn = leaf; turn; turn = turn.parent) path.push(turn);
  return path.reverse();
}

function toSegment(leaf: ServedTurn, claimed: Set<ServedTurn>): Segment {
  const path = pathOf(leaf);
  const length = path.reduce((sum, { contextIds, sampled }) => sum + contextIds.length + sampled.tokenIds.length, 0);
  const segment: Segment = {
    tokens: new Int32Array(length),
    mask: new Uint8Array(length).fill(Mask.context),
    logprobs: new Float32Array(length).fill(Number.NaN),
    versions: new Int32Array(length).fill(-1),
    turns: [],
  };
  let at = 0;
  for (const turn of path) {
    const { contextIds, sampled, info, isDelivered } = turn;
    const start = at + contextIds.length;
    const end = start + sampled.tokenIds.length;
    segment.tokens.set(contextIds, at);
    segment.tokens.set(sampled.tokenIds, start);
    const trained = claimed.has(turn) ? Mask.sharedPrefix : Mask.trained;
    segment.mask.fill(isDelivered ? trained : Mask.rejected, start, end);
    segment.logprobs.set(sampled.logprobs, start);
    segment.versions.set(sampled.versions, start);
    segment.turns.push({ start, end, ...info, ...(!isDelivered && { stop: "abort" }) } satisfies Turn);
    addRoutes(segment, sampled.routes, Math.max(0, at - 1), end - 1);
    claimed.add(turn);
    at = end;
  }
  return segment;
}

/** Of the positions `from` to `to`, each once: a reply's last token gets its own with the turn that goes on from it. */
function addRoutes(segment: Segment, routes: Routes | undefined, from: number, to: number): void {
  if (!routes) return;
  const { ids, width } = routes;
  segment.routes ??= new Int16Array(segment.tokens.length * width).fill(-1);
  segment.routes.set(ids.subarray(0, (to - from) * width), from * width);
}

/** What an assistant's message says, whatever wire it came by: null and "" alike, marks and thoughts ignored. */
function echoOf({ role, content, tool_calls: calls }: Message): string | null {
  if (role !== "assistant") return null;
  const said = (calls ?? []).map((call) => [call.id ?? null, call.function.name, argumentText(call)]);
  return JSON.stringify([content ?? "", ...said]);
}

function argumentText({ function: { arguments: input } }: ToolCall): string {
  if (typeof input !== "string") return JSON.stringify(input);
  try {
    return JSON.stringify(JSON.parse(input));
  } catch {
    return input;
  }
}

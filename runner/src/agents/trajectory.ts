import type { ToolSchema } from "../data/chat-template.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import type { GenerateResult } from "../engines/types.ts";
import { Mask, type Message, type Segment, type StopReason, type ToolCall, type Turn } from "./types.ts";

/** A request that was turned into ids, on its way to an engine. It changes nothing until it is committed. */
export interface PendingTurn {
  /** The whole prompt: stored ids, then the new context. */
  tokenIds: number[];
  /** The served turn that this one follows; null begins a segment. */
  parent: ServedTurn | null;
  contextIds: number[];
  /** The request as the template shows it, with the opening of the reply. */
  rendered: string;
  messageCount: number;
}

/** What is known of a turn beside its tokens. */
export interface TurnInfo {
  callId: string;
  temperature: number;
  stop: StopReason;
  source?: string;
}

/** A request and its reply: a node of the session's tree. */
interface ServedTurn extends PendingTurn {
  sampled: GenerateResult;
  /** Made when a request comes that may follow. */
  sampledText: string | null;
  message: Message;
  info: TurnInfo;
  hasFollower: boolean;
}

/**
 * All model calls of one rollout, as a tree. A request whose messages echo a served reply, and whose rendering goes on
 * from that turn's, extends it: stored ids stand for the reply, and only the text after the last sampled token is
 * tokenized. Any other request begins a segment. Sampled ids are never made from text again, nor compared with it.
 */
export class Session {
  private readonly tokenizer: Tokenizer;
  private readonly turns: ServedTurn[] = [];

  constructor(tokenizer: Tokenizer) {
    this.tokenizer = tokenizer;
  }

  async prepare(messages: Message[], tools?: ToolSchema[]): Promise<PendingTurn> {
    const rendered = this.tokenizer.renderChat(messages, { tools, addGenerationPrompt: true });
    const found = await this.findParent(messages, rendered, tools);
    const request = { rendered, messageCount: messages.length };
    if (!found) {
      const contextIds = await this.tokenizer.encodeRendered(rendered);
      return { ...request, parent: null, contextIds, tokenIds: contextIds };
    }
    const contextIds = await this.tokenizer.encode(found.newText);
    const { parent } = found;
    const tokenIds = [...parent.tokenIds, ...parent.sampled.tokenIds, ...contextIds];
    return { ...request, parent, contextIds, tokenIds };
  }

  /** The reply's text, without the token that ended it. */
  async textOf({ tokenIds, stop }: GenerateResult): Promise<string> {
    const ended = stop === "stop" && this.tokenizer.stopTokenIds.includes(tokenIds.at(-1) ?? -1);
    return this.tokenizer.decode(ended ? tokenIds.slice(0, -1) : tokenIds);
  }

  /** Stores a reply; `message` is what the agent was given for it, which it will echo. */
  commit(pending: PendingTurn, sampled: GenerateResult, message: Message, info: TurnInfo): void {
    this.check(sampled);
    this.turns.push({ ...pending, sampled, sampledText: null, message, info, hasFollower: false });
    if (pending.parent) pending.parent.hasFollower = true;
  }

  /** Throws at what an engine must not say: no token, arrays of other lengths, no probability. */
  check({ tokenIds, logprobs, versions }: GenerateResult): void {
    const count = tokenIds.length;
    if (count === 0) throw new Error("the engine's reply holds no token");
    if (logprobs.length !== count || versions.length !== count) {
      throw new Error(
        `the engine gave ${count} ids, ${logprobs.length} log-probabilities, ${versions.length} versions`,
      );
    }
    const bad = logprobs.findIndex((logprob) => !Number.isFinite(logprob));
    if (bad >= 0) throw new Error(`the engine gave the log-probability ${logprobs[bad]} for token ${bad} of its reply`);
  }

  /** One row a leaf. A sampled token is trained in the first row that holds it, and shared prefix in the others. */
  toSegments(): Segment[] {
    const claimed = new Set<ServedTurn>();
    return this.turns.filter((turn) => !turn.hasFollower).map((leaf) => toSegment(leaf, claimed));
  }

  /** The longest stored part that the request goes on from, and the text to add. */
  private async findParent(messages: Message[], rendered: string, tools: ToolSchema[] | undefined) {
    let found: { parent: ServedTurn; newText: string } | null = null;
    for (const turn of this.turns) {
      if (found && turn.rendered.length <= found.parent.rendered.length) continue;
      const echo = messages[turn.messageCount];
      if (!echo || !isSameMessage(echo, turn.message) || !rendered.startsWith(turn.rendered)) continue;
      const newText = await this.textAfter(turn, messages, rendered, tools);
      if (newText !== null) found = { parent: turn, newText };
    }
    return found;
  }

  /** The part of `rendered` after what the turn sampled; null when it does not go on from there. */
  private async textAfter(
    turn: ServedTurn,
    messages: Message[],
    rendered: string,
    tools?: ToolSchema[],
  ): Promise<string | null> {
    const rest = rendered.slice(turn.rendered.length);
    turn.sampledText ??= await this.tokenizer.decode(turn.sampled.tokenIds);
    const { sampledText } = turn;
    if (rest.startsWith(sampledText)) return rest.slice(sampledText.length);
    // The template shows the reply in other words than were sampled (trimmed, a call laid out anew): its own end of
    // turn tells where the reply ends.
    const stored = this.tokenizer.renderChat(messages.slice(0, turn.messageCount + 1), { tools });
    if (!stored.startsWith(turn.rendered) || !rendered.startsWith(stored)) return null;
    const reply = stored.slice(turn.rendered.length);
    const closers = this.tokenizer.stopTokenIds.map((id) => this.tokenizer.textOf(id)!);
    const at = Math.max(...closers.map((closer) => reply.lastIndexOf(closer)));
    if (at < 0) return null;
    const closer = closers.find((text) => reply.startsWith(text, at))!;
    const wasSampled = sampledText.endsWith(closer);
    return rest.slice(wasSampled ? at + closer.length : at);
  }
}

function toSegment(leaf: ServedTurn, claimed: Set<ServedTurn>): Segment {
  const path: ServedTurn[] = [];
  for (let turn: ServedTurn | null = leaf; turn; turn = turn.parent as ServedTurn | null) path.unshift(turn);
  const length = leaf.tokenIds.length + leaf.sampled.tokenIds.length;
  const segment: Segment = {
    tokens: Int32Array.from([...leaf.tokenIds, ...leaf.sampled.tokenIds]),
    mask: new Uint8Array(length).fill(Mask.context),
    logprobs: new Float32Array(length).fill(Number.NaN),
    versions: new Int32Array(length).fill(-1),
    turns: [],
  };
  for (const turn of path) {
    const start = turn.tokenIds.length;
    const end = start + turn.sampled.tokenIds.length;
    segment.mask.fill(claimed.has(turn) ? Mask.sharedPrefix : Mask.trained, start, end);
    segment.logprobs.set(turn.sampled.logprobs, start);
    segment.versions.set(turn.sampled.versions, start);
    segment.turns.push({ start, end, ...turn.info } satisfies Turn);
    claimed.add(turn);
  }
  return segment;
}

/** Whether two assistant messages say the same, whatever wire they came by: null and "" alike, marks ignored. */
function isSameMessage(one: Message, other: Message): boolean {
  return one.role === "assistant" && JSON.stringify(contentOf(one)) === JSON.stringify(contentOf(other));
}

function contentOf({ content, tool_calls: calls }: Message) {
  return [content ?? "", ...(calls ?? []).map((call) => [call.id ?? null, call.function.name, argumentText(call)])];
}

function argumentText({ function: { arguments: input } }: ToolCall): string {
  if (typeof input !== "string") return JSON.stringify(input);
  try {
    return JSON.stringify(JSON.parse(input));
  } catch {
    return input;
  }
}

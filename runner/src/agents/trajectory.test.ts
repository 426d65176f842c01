import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { Tokenizer } from "../data/tokenizer.ts";
import type { GenerateResult } from "../engines/types.ts";
import { type PendingTurn, Session } from "./trajectory.ts";
import { Mask, type Message, type Segment } from "./types.ts";

const fixtures = (path: string) => fileURLToPath(new URL(`../data/fixtures/${path}`, import.meta.url));
const user = (content: string): Message => ({ role: "user", content });
const tool = (content: string): Message => ({ role: "tool", content });

let chatml: Tokenizer;
let thinking: Tokenizer;
beforeAll(async () => {
  chatml = await Tokenizer.load(fixtures("bytelevel"));
  thinking = await Tokenizer.load(fixtures("bytelevel"), { chatTemplate: fixtures("think.jinja") });
});

/** An engine's reply with recognisable numbers: log-probabilities -1, -2, … and version `version`. */
function reply(tokenIds: number[], stop: "stop" | "length" = "stop", version = 0): GenerateResult {
  return { tokenIds, logprobs: tokenIds.map((_, i) => -1 - i), versions: tokenIds.map(() => version), stop };
}

let calls = 0;
/** A turn of a client that echoes text: what was sent, and the conversation with the reply. */
async function say(session: Session, messages: Message[], sampled: GenerateResult, served?: Message) {
  const pending = await session.prepare(messages);
  const message = served ?? { role: "assistant", content: await session.textOf(sampled) };
  session.commit(pending, sampled, message, { callId: `c${calls++}`, temperature: 1, stop: sampled.stop });
  return { sent: pending.tokenIds, messages: [...messages, message] };
}

/** One id a byte, never merged: another encoding of the text than the tokenizer's own. */
async function unusual(tokenizer: Tokenizer, text: string): Promise<number[]> {
  const ids = (await Promise.all([...text].map((one) => tokenizer.encode(one)))).flat();
  expect(await tokenizer.decode(ids)).toBe(text);
  expect(ids).not.toEqual(await tokenizer.encode(text));
  return ids;
}

const end = () => chatml.idOf("<|im_end|>")!;
const sampledOf = ({ tokens, mask }: Segment, value: number) => [...tokens].filter((_, i) => mask[i] === value);

describe("the prefix rule", () => {
  // Case A1.
  test("an unusual encoding that the client echoes as text reaches the row as it was sampled", async () => {
    const session = new Session(chatml);
    let messages = [user("return the import")];
    const sampled: number[][] = [];
    for (let turn = 0; turn < 3; turn++) {
      const ids = [...(await unusual(chatml, `return self.import ${turn}`)), end()];
      sampled.push(ids);
      const said = await say(session, messages, reply(ids, "stop", turn));
      messages = [...said.messages, user(`more ${turn}`)];
    }
    const segments = session.toSegments();
    expect(segments).toHaveLength(1);
    expect(sampledOf(segments[0]!, Mask.trained)).toEqual(sampled.flat());
    const { turns, versions, logprobs, mask } = segments[0]!;
    for (const [at, { start, end }] of turns.entries()) {
      expect([...versions.slice(start, end)]).toEqual(sampled[at]!.map(() => at));
      expect([...logprobs.slice(start, end)]).toEqual(sampled[at]!.map((_, i) => -1 - i));
    }
    expect([...mask].every((value, i) => (value === Mask.trained) === !Number.isNaN(logprobs[i]))).toBe(true);
    expect([...mask].every((value, i) => (value === Mask.trained) === versions[i]! >= 0)).toBe(true);
  });

  // Case A2.
  test("ids made turn by turn equal a full render's, the separator after an end of turn masked", async () => {
    const session = new Session(chatml);
    const replies = ["get b", "answer 7"];
    const encoded = await Promise.all(replies.map(async (text) => [...(await chatml.encode(text)), end()]));
    const first = await say(session, [user("find b")], reply(encoded[0]!));
    await say(session, [...first.messages, tool("7")], reply(encoded[1]!));
    const [segment, ...others] = session.toSegments();
    expect(others).toEqual([]);
    const full: Message[] = [
      user("find b"),
      { role: "assistant", content: "get b" },
      tool("7"),
      { role: "assistant", content: "answer 7" },
    ];
    const newline = await chatml.encode("\n");
    expect([...segment!.tokens, ...newline]).toEqual(await chatml.encodeChat(full));
    const after = segment!.turns[0]!.end;
    expect([segment!.tokens[after], segment!.mask[after]]).toEqual([newline[0], Mask.context]);
    expect(sampledOf(segment!, Mask.trained)).toEqual(encoded.flat());
  });

  test("a reply cut by length gets its end of turn as context", async () => {
    const session = new Session(chatml);
    const cut = await chatml.encode("get");
    const first = await say(session, [user("find b")], reply(cut, "length"));
    const second = await session.prepare([...first.messages, user("go on")]);
    const closer = await chatml.encode("<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n");
    expect(second.tokenIds).toEqual([...first.sent, ...cut, ...closer]);
  });

  test("a reply cut inside a character is one segment with its ids", async () => {
    const session = new Session(chatml);
    const cut = (await chatml.encode("\u{1f600}")).slice(0, 2);
    const first = await say(session, [user("smile")], reply(cut, "length"));
    const second = await session.prepare([...first.messages, user("go on")]);
    expect(second.tokenIds.slice(0, first.sent.length + 2)).toEqual([...first.sent, ...cut]);
    expect(second.parent).not.toBeNull();
  });

  test("a reply that the template lays out anew stands for its ids: null and empty content alike", async () => {
    const session = new Session(chatml);
    const text = '<tool_call>{"name":"add","arguments":{"x":1.0}}</tool_call>';
    const ids = [...(await chatml.encode(text)), end()];
    const call = { id: "c", function: { name: "add", arguments: '{"x":1.0}' } };
    const first = await say(session, [user("add")], reply(ids), {
      role: "assistant",
      content: null,
      tool_calls: [call],
    });
    const echo: Message = { role: "assistant", content: "", tool_calls: [{ ...call, type: "function" }] };
    const second = await session.prepare([user("add"), echo, tool("2")]);
    const after = await chatml.encode("\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n");
    expect(second.tokenIds).toEqual([...first.sent, ...ids, ...after]);
    const cutIds = ids.slice(0, -1);
    const cut = new Session(chatml);
    await say(cut, [user("add")], reply(cutIds, "length"), { role: "assistant", content: null, tool_calls: [call] });
    const resumed = await cut.prepare([user("add"), echo, tool("2")]);
    expect(resumed.tokenIds).toEqual([...first.sent, ...cutIds, end(), ...after]);
  });

  test("a reply that differs from the served one, or that nobody served, is context of a new segment", async () => {
    const session = new Session(chatml);
    const ids = [...(await chatml.encode("yes")), end()];
    await say(session, [user("a")], reply(ids));
    const changed = await session.prepare([user("a"), { role: "assistant", content: "no" }, user("b")]);
    expect(changed.parent).toBeNull();
    expect(changed.tokenIds).toEqual(
      await chatml.encodeChat([user("a"), { role: "assistant", content: "no" }, user("b")], {
        addGenerationPrompt: true,
      }),
    );
  });

  test("what was sampled for nobody stands for no message", async () => {
    const session = new Session(chatml);
    const lost = await session.prepare([user("a")]);
    const info = { callId: "c", temperature: 1, stop: "abort" as const };
    session.commit(lost, reply(await chatml.encode("b"), "length"), null, info).isDelivered = false;
    const next = await session.prepare([user("a"), user("b"), user("c")]);
    expect(next.parent).toBeNull();
    expect(next.tokenIds).toEqual(
      await chatml.encodeChat([user("a"), user("b"), user("c")], { addGenerationPrompt: true }),
    );
  });

  // Case A4.
  test("a template that drops earlier thoughts: extend where the prefix holds, else a new segment", async () => {
    const session = new Session(thinking);
    const encode = async (text: string) => [...(await thinking.encode(text)), end()];
    const [one, two, three] = await Promise.all(
      ["<think>t1</think>\n\nget", "<think>t2</think>\n\ndone", "bye"].map(encode),
    );
    const first = await say(session, [user("a")], reply(one!));
    const second = await say(session, [...first.messages, tool("x")], reply(two!));
    expect(second.sent.slice(0, first.sent.length + one!.length)).toEqual([...first.sent, ...one!]);
    const third = await say(session, [...second.messages, user("b")], reply(three!));
    expect(await thinking.decode(third.sent)).not.toContain("t1");
    const segments = session.toSegments();
    expect(segments.map((segment) => sampledOf(segment, Mask.trained))).toEqual([[...one!, ...two!], three!]);
    expect(segments.map((segment) => sampledOf(segment, Mask.sharedPrefix))).toEqual([[], []]);
  });

  test("branches share their prefix, which is trained in the first row alone", async () => {
    const session = new Session(chatml);
    const encode = async (text: string) => [...(await chatml.encode(text)), end()];
    const [root, left, right] = await Promise.all(["root", "left", "right"].map(encode));
    const first = await say(session, [user("a")], reply(root!));
    await say(session, [...first.messages, user("l")], reply(left!));
    await say(session, [...first.messages, user("r")], reply(right!));
    const [one, two] = session.toSegments();
    expect([sampledOf(one!, Mask.trained), sampledOf(one!, Mask.sharedPrefix)]).toEqual([[...root!, ...left!], []]);
    expect([sampledOf(two!, Mask.trained), sampledOf(two!, Mask.sharedPrefix)]).toEqual([right, root]);
    expect(two!.turns.map(({ stop }) => stop)).toEqual(["stop", "stop"]);
  });
});

test("nothing is stored before a reply is committed, and a reply that lies is refused", async () => {
  const session = new Session(chatml);
  const pending = await session.prepare([user("a")]);
  expect(session.toSegments()).toEqual([]);
  const commit = (sampled: GenerateResult) =>
    session.commit(pending, sampled, user(""), { callId: "c", temperature: 1, stop: "stop" });
  expect(() => commit(reply([]))).toThrow("no token");
  expect(() => commit({ ...reply([1, 2]), logprobs: [-1] })).toThrow("2 ids, 1 log-probabilities, 2 versions");
  expect(() => commit({ ...reply([1]), logprobs: [Number.NaN] })).toThrow("log-probability NaN for token 0");
  expect(session.toSegments()).toEqual([]);
});

describe("a long conversation", () => {
  // Case I3.
  test("is rendered whole at few of its turns", async () => {
    const session = new Session(chatml);
    const rendered: number[] = [];
    const spy = vi.spyOn(chatml, "renderChat");
    let messages = [user("start")];
    for (let turn = 0; turn < 100; turn++) {
      const ids = [...(await chatml.encode(`answer ${turn}`)), end()];
      spy.mockClear();
      const said = await say(session, messages, reply(ids));
      rendered.push(Math.max(...spy.mock.calls.map(([given]) => given.length)));
      messages = [...said.messages, turn % 2 === 0 ? tool("t") : user("u")];
    }
    spy.mockRestore();
    expect(session.toSegments()).toHaveLength(1);
    // The first two turns are their own ends; each of the two kinds is tried three times.
    expect(rendered.filter((count) => count > 3)).toHaveLength(6);
    expect(await chatml.decode((await session.prepare(messages)).tokenIds)).toBe(
      chatml.renderChat(messages, { addGenerationPrompt: true }),
    );
  });

  test("gives the ids of a session that renders all of it each time, whatever the template", async () => {
    const own = (path: string) => fileURLToPath(new URL(`fixtures/${path}`, import.meta.url));
    const [merging, rewriting] = await Promise.all(
      ["merges.jinja", "rewrites.jinja"].map((path) =>
        Tokenizer.load(fixtures("bytelevel"), { chatTemplate: own(path) }),
      ),
    );
    const rounds = [chatml, thinking, merging!, rewriting!].map(({ repeatsRounds }) => repeatsRounds);
    expect(rounds).toEqual([true, true, true, false]);
    const words = fc.constantFrom("a", "<think>t</think>\n\nb", " c ", "<think>u</think>\n\n");
    const next = fc.constantFrom([tool("t")], [tool("t"), tool("u")], [user("v")], [user("v"), user("w")]);
    const step = fc.record({ words, next, cut: fc.nat(9), from: fc.nat(30) });
    const tokenizers = { chatml, thinking, merging: merging!, rewriting: rewriting! };
    const template = fc.constantFrom("chatml" as const, "thinking" as const, "merging" as const, "rewriting" as const);
    await fc.assert(
      fc.asyncProperty(template, fc.array(step, { minLength: 3, maxLength: 20 }), async (name, steps) => {
        const tokenizer = tokenizers[name];
        const [session, whole] = [new Session(tokenizer), new Session(tokenizer)];
        const states = [[user("start")]];
        for (const { words, next, cut, from } of steps) {
          // Now and then from an earlier state, now and then without an end of turn.
          const messages = from < 27 ? states.at(-1)! : states[from % states.length]!;
          // No reply comes twice: of two alike either may be gone on from.
          const text = await tokenizer.encode(words + states.length);
          const sampled = cut === 0 ? reply(text, "length") : reply([...text, end()]);
          const [pending, wanted] = [await session.prepare(messages), await whole.prepare(messages)];
          expect(pending.tokenIds).toEqual(wanted.tokenIds);
          expect(session.turns.indexOf(pending.parent!)).toBe(whole.turns.indexOf(wanted.parent!));
          const said: Message = { role: "assistant", content: await session.textOf(sampled) };
          const info = { callId: "c", temperature: 1, stop: sampled.stop };
          session.commit(pending, sampled, said, info);
          whole.commit(wanted, sampled, said, info).asked = undefined;
          states.push([...messages, said, ...next]);
        }
      }),
      { numRuns: 300 },
    );
  }, 240_000);
});

// Invariant 1, and case H6.
test(
  "token conservation: whatever a client does, each sampled token is trained or rejected in exactly one row",
  async () => {
    const own = (path: string) => fileURLToPath(new URL(`fixtures/${path}`, import.meta.url));
    const [merging, rewriting] = await Promise.all(
      ["merges.jinja", "rewrites.jinja"].map((path) =>
        Tokenizer.load(fixtures("bytelevel"), { chatTemplate: own(path) }),
      ),
    );
    const step = fc.record({
      words: fc.array(fc.constantFrom("a", " b", "<think>t</think>\n\n", "é", "\u{1f600}", "\n"), { maxLength: 4 }),
      cut: fc.boolean(),
      // What the client does next: go on, branch from an earlier state, forget the start, change what was said, send
      // the ids or the text so far, ask for two choices, or go away before the reply is there.
      action: fc.constantFrom("tool", "tools", "user", "branch", "compact", "edit", "ids", "text", "choices", "lost"),
      at: fc.nat(),
    });
    const tokenizers = { chatml, thinking, merging: merging!, rewriting: rewriting! };
    const template = fc.constantFrom("chatml" as const, "thinking" as const, "merging" as const, "rewriting" as const);
    await fc.assert(
      fc.asyncProperty(template, fc.array(step, { minLength: 1, maxLength: 7 }), async (name, steps) => {
        const tokenizer = tokenizers[name];
        const session = new Session(tokenizer);
        const states: Message[][] = [[user("start")]];
        const kept: string[] = [];
        const lost: string[] = [];
        let id = 0;
        const commit = async (pending: PendingTurn, { words, cut, action }: (typeof steps)[0]) => {
          const text = await tokenizer.encode(words.join(""));
          const ids = cut && text.length > 0 ? text : [...text, end()];
          // Every sampled token gets a log-probability of its own, so that the rows can be compared token by token.
          const sampled = { ...reply(ids, ids.at(-1) === end() ? "stop" : "length"), logprobs: ids.map(() => -++id) };
          const message: Message = { role: "assistant", content: await session.textOf(sampled) };
          const info = { callId: `c${id}`, temperature: 1, stop: sampled.stop };
          const turn = session.commit(pending, sampled, pending.messageCount === null ? null : message, info);
          const isLost = action === "lost";
          turn.isDelivered = !isLost;
          (isLost ? lost : kept).push(...ids.map((token, at) => `${token} ${sampled.logprobs[at]}`));
          return message;
        };
        for (const one of steps) {
          const { action, at } = one;
          const from = action === "branch" ? states[at % states.length]! : states.at(-1)!;
          const pending = await session.prepare(from);
          const messages = [...from, await commit(pending, one)];
          if (action === "choices") await commit(pending, one);
          if (action === "ids" || action === "text") {
            const ids = [...pending.tokenIds, ...(await tokenizer.encode(`<|im_start|>${at % 3}`))];
            const text = `${await tokenizer.decode(ids)} more`;
            await commit(action === "ids" ? session.prepareTokens(ids) : await session.prepareText(text), one);
          }
          const next =
            action === "tool" ? [tool("t")] : action === "tools" ? [tool("t"), tool("u")] : [user(`u${at % 3}`)];
          if (action === "lost") states.push(from);
          else if (action === "compact") states.push([user("summary"), ...messages.slice(-1), ...next]);
          else if (action === "edit") states.push([...from, { role: "assistant", content: "other" }, ...next]);
          else states.push([...messages, ...next]);
        }
        const segments = session.toSegments();
        const withMask = (value: number) =>
          segments.flatMap(({ tokens, mask, logprobs }) =>
            [...tokens].flatMap((token, at) => (mask[at] === value ? [`${token} ${logprobs[at]}`] : [])),
          );
        const [trained, rejected] = [withMask(Mask.trained), withMask(Mask.rejected)];
        expect([...trained, ...rejected].sort()).toEqual([...kept, ...lost].sort());
        // What was lost counts again where a later prompt holds the very same tokens.
        expect(rejected.filter((token) => !lost.includes(token))).toEqual([]);
        for (const { tokens, mask, logprobs, versions, turns } of segments) {
          expect(new Set([tokens.length, mask.length, logprobs.length, versions.length]).size).toBe(1);
          const sampled = turns.reduce((sum, { start, end }) => sum + end - start, 0);
          expect([...mask].filter((value) => value !== Mask.context)).toHaveLength(sampled);
        }
      }),
      { numRuns: 1000 },
    );
  },
  240_000 * Number(process.env.MOLT_DEADLINE_SCALE ?? 1),
);

describe("routes of a mixture", () => {
  /** Of each position but the last, its number and the pass that gave it. */
  const withRoutes = (sampled: GenerateResult, promptLength: number, pass: number): GenerateResult => {
    const positions = promptLength + sampled.tokenIds.length - 1;
    const ids = Int16Array.from({ length: 2 * positions }, (_, i) => (i % 2 === 0 ? i / 2 : pass));
    return { ...sampled, routes: { ids, width: 2 } };
  };

  test("a position has those of the pass that sampled from it; a later turn fills the reply's last token", async () => {
    const session = new Session(chatml);
    let messages = [user("one")];
    const ends: number[] = [];
    for (let turn = 0; turn < 3; turn++) {
      const pending = await session.prepare(messages);
      const sampled = reply([...(await chatml.encode(`reply ${turn}`)), end()]);
      const message: Message = { role: "assistant", content: await session.textOf(sampled) };
      const info = { callId: `c${turn}`, temperature: 1, stop: "stop" as const };
      session.commit(pending, withRoutes(sampled, pending.tokenIds.length, turn), message, info);
      ends.push(pending.tokenIds.length + sampled.tokenIds.length);
      messages = [...messages, message, user(`more ${turn}`)];
    }
    const [segment] = session.toSegments();
    const { tokens, routes } = segment!;
    // The turn whose pass came first over a position: it had all positions before its reply's last token.
    const passOf = (t: number) => ends.findIndex((end) => t < end - 1);
    const expected = [...tokens].flatMap((_, t) => (passOf(t) < 0 ? [-1, -1] : [t, passOf(t)]));
    expect([...routes!]).toEqual(expected);
  });

  test("of a turn without any are unknown", async () => {
    const session = new Session(chatml);
    const { messages } = await say(session, [user("one")], reply([5, 6, end()]));
    const pending = await session.prepare([...messages, user("two")]);
    const sampled = reply([7, end()]);
    const info = { callId: "c", temperature: 1, stop: "stop" as const };
    session.commit(pending, withRoutes(sampled, pending.tokenIds.length, 1), null, info);
    const [{ routes, turns }] = session.toSegments() as [Segment];
    const before = turns[0]!.end - 1;
    expect([...routes!.slice(0, 2 * before)]).toEqual(new Array(2 * before).fill(-1));
    expect([...routes!.slice(2 * before, 2 * before + 4)]).toEqual([before, 1, before + 1, 1]);
  });
});

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import type { Message, Row } from "../agents/types.ts";
import type { Recipe } from "../recipe/index.ts";
import type { ToolSchema } from "./chat-template.ts";
import { encodeDemonstration, encodeDemonstrations } from "./demonstration.ts";
import { Tokenizer } from "./tokenizer.ts";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const bytelevel = here("fixtures/bytelevel");
const scratch = mkdtempSync(join(tmpdir(), "demonstrations-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

interface Fixture {
  templates: Record<string, string>;
  cases: { template: string; messages: Message[]; tools: ToolSchema[] | null; ids: number[]; mask: number[] }[];
}

const fixture: Fixture = JSON.parse(readFileSync(here("fixtures/demonstrations.json"), "utf8"));

function withTemplate(name: string, source: string): Promise<Tokenizer> {
  const chatTemplate = join(scratch, `${name}.jinja`);
  writeFileSync(chatTemplate, source);
  return Tokenizer.load(bytelevel, { chatTemplate });
}

const tagged = (source: string) => source;
/** The same text without the tags, which jinja trims around as around any block. */
const untagged = (source: string) =>
  source.replace(/\{%(-?)\s*(?:end)?generation\s*(-?)%\}/g, "{%$1 if 1 $2%}{% endif %}");

describe.each([
  ["by the template's generation tags", tagged],
  ["by each message's end, the opener and the closer", untagged],
])("masks %s", (name, change) => {
  // transformers' return_assistant_tokens_mask: fixtures/make_demonstrations.py.
  // What "spaced" writes between opener and tag would be sampled, by its opener.
  const cases = fixture.cases.filter(({ template }) => change === tagged || template !== "spaced");
  test.each(cases.map((one, index) => [index, one] as const))("are transformers' (%i)", async (index, one) => {
    const tokenizer = await withTemplate(`${name.length}-${index}`, change(fixture.templates[one.template]!));
    expect(await tokenizer.encodeChat(one.messages, { tools: one.tools ?? undefined })).toEqual(one.ids);
    const { tokens, mask } = await encodeDemonstration(tokenizer, one.messages, { tools: one.tools ?? undefined });
    expect([...tokens]).toEqual(one.ids.slice(0, tokens.length));
    expect([...mask]).toEqual(one.mask.slice(0, tokens.length));
    // What the template writes after the last turn teaches nothing.
    expect(one.mask.slice(tokens.length)).not.toContain(1);
    expect(one.mask).toContain(1);
  });
});

test("the last turn alone, on request: the ids are the same", async () => {
  const { messages, template } = fixture.cases[2]!;
  const tokenizer = await withTemplate("last", fixture.templates[template]!);
  const [all, last] = [
    await encodeDemonstration(tokenizer, messages),
    await encodeDemonstration(tokenizer, messages, { lastTurnOnly: true }),
  ];
  expect(last.tokens).toEqual(all.tokens);
  const trained = (mask: Uint8Array) => tokenizer.decode([...all.tokens].filter((_, t) => mask[t] === 1));
  expect(await trained(all.mask)).toBe("b<|im_end|>d e<|im_end|>");
  expect(await trained(last.mask)).toBe("d e<|im_end|>");
});

test("whatever a conversation says, its assistants' words and ends of turn are trained and nothing else", async () => {
  const tokenizer = await Tokenizer.load(bytelevel);
  const word = fc.constantFrom(
    "a",
    "b ",
    " c",
    "\n",
    "é",
    "<|im_end|>\n",
    "<|im_start|>assistant\n",
    "<|im_start|>user\n",
  );
  const text = fc.array(word, { minLength: 1, maxLength: 5 }).map((words) => words.join(""));
  // An assistant does not write its own end of turn: a rollout would have ended there.
  const reply = text.map((said) => said.replaceAll("<|im_end|>", ""));
  const message = fc.oneof(
    fc.record({ role: fc.constant("user"), content: text }),
    fc.record({ role: fc.constant("tool"), content: text }),
    fc.record({ role: fc.constant("assistant"), content: reply }),
  ) as fc.Arbitrary<Message>;
  const conversation = fc.array(message, { minLength: 1, maxLength: 7 });
  await fc.assert(
    fc.asyncProperty(conversation, async (messages) => {
      const replies = messages.filter(({ role }) => role === "assistant");
      fc.pre(replies.length > 0);
      const { tokens, mask } = await encodeDemonstration(tokenizer, messages);
      const shown = messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`);
      const last = messages.map(({ role }) => role).lastIndexOf("assistant");
      expect(await tokenizer.decode([...tokens])).toBe(
        shown
          .slice(0, last + 1)
          .join("")
          .slice(0, -1),
      );
      const trained = await tokenizer.decode([...tokens].filter((_, t) => mask[t] === 1));
      expect(trained).toBe(replies.map(({ content }) => `${content}<|im_end|>`).join(""));
    }),
    { numRuns: 300 },
  );
});

test("a template that shows a turn nowhere, or whose turns are not to be told, is an error that helps", async () => {
  const messages: Message[] = [
    { role: "user", content: "a" },
    { role: "assistant", content: "b" },
  ];
  const silent = await withTemplate("silent", "{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>{% endfor %}");
  await expect(encodeDemonstration(silent, messages)).rejects.toThrow("the turn of message 1");
  const measured = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content | length }}<|im_end|>{% endfor %}";
  await expect(encodeDemonstration(await withTemplate("measured", measured), messages)).rejects.toThrow(
    "shows a message otherwise when its end is marked",
  );
  await expect(encodeDemonstration(silent, messages.slice(0, 1))).rejects.toThrow("no assistant turn to learn from");
});

describe("rows longer than data.max_len", () => {
  const rowOf = (id: string, ...said: string[]): Row => ({
    id,
    messages: said.map((content, at) => ({ role: at % 2 === 0 ? "user" : "assistant", content })),
    label: undefined,
    fields: {},
  });
  // The shortest: <|im_start|> u ser \n a <|im_end|> \n <|im_start|> assistant's three and so on, by the fixture's ids.
  const rows = [rowOf("a", "a", "b"), rowOf("b", "a", "b", "c", "d"), rowOf("c", "a ".repeat(40), "b")];
  const settings = (overlong: string, max_len: number) =>
    ({ data: { max_len, overlong, tools_key: null, train_on_last_turn_only: false } }) as unknown as Recipe;
  const place = { file: "d.jsonl", option: "data.prompt_dataset" };

  test("are refused together, left out, or cut, and counted", async () => {
    const tokenizer = await Tokenizer.load(bytelevel);
    const whole = await Promise.all(rows.map(({ messages }) => encodeDemonstration(tokenizer, messages)));
    const lengths = whole.map(({ tokens }) => tokens.length);
    const limit = lengths[0]! + 2;
    expect(lengths[1]).toBeGreaterThan(limit);
    await expect(encodeDemonstrations(tokenizer, rows, settings("refuse", limit), place)).rejects.toMatchObject({
      message: expect.stringMatching(
        `2 rows cannot be demonstrations:\\s+b has ${lengths[1]} tokens, data.max_len is ${limit}\\s+c has`,
      ),
      position: { file: "d.jsonl" },
    });
    const left = await encodeDemonstrations(tokenizer, rows, settings("drop", limit), place);
    expect(left).toMatchObject({ truncated: 0, dropped: 2, rows: [{ id: "a", ...whole[0] }, null, null] });
    const cut = await encodeDemonstrations(tokenizer, rows, settings("truncate", limit), place);
    // c has no reply within the limit.
    expect(cut).toMatchObject({ truncated: 1, dropped: 1 });
    expect(cut.rows[1]!.tokens).toEqual(whole[1]!.tokens.slice(0, limit));
    expect(cut.rows[1]!.mask).toEqual(whole[1]!.mask.slice(0, limit));
    expect(cut.rows[2]).toBeNull();
  });

  test("where none is left are refused, however they are cut", async () => {
    const tokenizer = await Tokenizer.load(bytelevel);
    for (const overlong of ["drop", "truncate"]) {
      const none = encodeDemonstrations(tokenizer, rows, settings(overlong, 2), place);
      await expect(none).rejects.toThrow("data.prompt_dataset: none of its 3 rows fits in data.max_len 2 with a reply");
    }
  });
});

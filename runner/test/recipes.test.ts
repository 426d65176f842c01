/** The recipes' data and agents, against the rules that they state. */
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { Gateway } from "../src/agents/gateway.ts";
import type { Row } from "../src/agents/types.ts";
import { readDataset } from "../src/data/dataset.ts";
import { encodeDemonstration } from "../src/data/demonstration.ts";
import { Tokenizer } from "../src/data/tokenizer.ts";
import { loadAgent } from "../src/testing.ts";

const recipes = new URL("../../recipes/", import.meta.url);

async function rowsOf(path: string, labelKey: string | null): Promise<Row[]> {
  const file = fileURLToPath(new URL(path, recipes));
  return (await readDataset(file, { inputKey: "prompt", labelKey })).rows;
}

const tableOf = (row: Row) => row.fields.table as Record<string, string>;
const isDigit = (text: string) => /^\d$/.test(text);

test("pointers: a key leads to its label over one pointer at most, and what is held out is not trained", async () => {
  const [heldout, prompts] = [
    await rowsOf("pointers/heldout.jsonl", "label"),
    await rowsOf("pointers/prompts.jsonl", "label"),
  ];
  expect([heldout.length, prompts.length]).toEqual([192, 1600]);
  for (const row of [...heldout, ...prompts]) {
    const table = tableOf(row);
    expect(Object.keys(table)).toEqual(["a", "b", "c", "d"]);
    const first = table[row.messages[0]!.content!.replace("find ", "")]!;
    expect(isDigit(first) ? first : table[first]).toBe(row.label);
  }
  const nameOf = ({ messages, fields }: Row) => JSON.stringify([messages[0]!.content, fields.table]);
  expect(new Set([...heldout, ...prompts].map(nameOf)).size).toBe(1792);
});

test("pointers: demonstrations look keys up until a digit shows, and answer it", async () => {
  const rows = await rowsOf("pointers/warmup.jsonl", "reply");
  expect(rows).toHaveLength(1000);
  const asked: Record<string, number> = { a: 0, b: 0, c: 0, d: 0 };
  for (const { messages, label } of rows) {
    const said = messages.map(({ role, content }) => [role, content]);
    expect(said[0]).toEqual(["user", expect.stringMatching(/^find [a-d]$/)]);
    const [found, calls] = [
      said.slice(2).filter((_, at) => at % 2 === 0),
      said.slice(1).filter((_, at) => at % 2 === 0),
    ];
    expect(calls.length).toBeLessThanOrEqual(4);
    for (const [role, content] of calls) {
      expect([role, content]).toEqual(["assistant", expect.stringMatching(/^get [a-d]$/)]);
      asked[content!.slice(-1)]!++;
    }
    expect(found.map(([role]) => role)).toEqual(calls.map(() => "tool"));
    expect(found.map(([, content]) => isDigit(content!))).toEqual(calls.map((_, at) => at === calls.length - 1));
    expect(label).toBe(`=${found.at(-1)![1]}`);
  }
  const calls = Object.values(asked);
  // Even: the standard deviation of each is about 16.
  for (const count of calls) expect(Math.abs(count - calls.reduce((sum, one) => sum + one) / 4)).toBeLessThan(100);
});

test("smollm2: one question a country; a reply earns the part of it that is the name", async () => {
  const rows = await rowsOf("smollm2/capitals.jsonl", "label");
  expect(new Set(rows.map(({ messages }) => messages[0]!.content)).size).toBe(243);
  const labels = Object.fromEntries(rows.map(({ messages, label }) => [messages[0]!.content, label]));
  expect(labels).toMatchObject({
    "What is the capital of France?": "Paris",
    "What is the capital of Ecuador?": "Quito",
    "What is the capital of Kenya?": "Nairobi",
  });
  const Agent = await loadAgent(new URL("smollm2/agent.ts", recipes));
  const row = { label: "Paris" } as Row;
  const rewardOf = async (text: string) => (await new Agent().step({ text, stop: "stop", turn: 0 }, row)).reward;
  const replies = ["Paris", "Paris.", " Paris\n", "The capital of France is Paris.", "paris", "Lyon", ""];
  expect(await Promise.all(replies.map(rewardOf))).toEqual([1, 5 / 6, 1, 5 / 31, 0, 0, 0]);
});

test("tools: demonstrations are the pointers' with calls, laid out as the parser reads them", async () => {
  const folder = fileURLToPath(new URL("tools/model", recipes));
  const tokenizer = await Tokenizer.load(folder);
  const gateway = await Gateway.start(tokenizer, (_, text) => expect.unreachable(text));
  await gateway.stop();
  const [rows, plain] = [await rowsOf("tools/warmup.jsonl", "reply"), await rowsOf("pointers/warmup.jsonl", "reply")];
  for (const [at, { messages, label }] of rows.entries()) {
    const { tokens } = await encodeDemonstration(tokenizer, [...messages, { role: "assistant", content: `${label}` }]);
    const shown = await tokenizer.decode([...tokens]);
    const wanted = plain[at]!.messages.map(({ role, content }) => {
      const call = role === "assistant" ? content!.replace(/^get (.)$/, '[get(key="$1")]') : content;
      return `${{ user: "<user>", assistant: "<asst>", tool: "<tool>", system: "" }[role]}${call}<end>`;
    });
    expect(shown).toBe(`<bos>${wanted.join("")}<asst>${label}<end>`);
    expect(tokens.length).toBeLessThanOrEqual(128);
  }
});

test("command: the label is the largest digit, a demonstration any; what is held out is not trained", async () => {
  const [heldout, prompts, warmup] = [
    await rowsOf("command/heldout.jsonl", "label"),
    await rowsOf("command/prompts.jsonl", "label"),
    await rowsOf("command/warmup.jsonl", "reply"),
  ];
  expect([heldout.length, prompts.length, warmup.length]).toEqual([64, 600, 600]);
  const digitsOf = ({ messages }: Row) => /^max (\d{3,5})$/.exec(messages[0]!.content!)![1]!;
  for (const row of [...heldout, ...prompts])
    expect(Number(row.label)).toBe(Math.max(...[...digitsOf(row)].map(Number)));
  for (const row of warmup) expect(digitsOf(row)).toContain(row.label);
  expect(new Set([...heldout, ...prompts, ...warmup].map(digitsOf)).size).toBe(1264);
});

test("sft: what the assistant says, calls too, is trained and nothing else; what is held out is not", async () => {
  const chatTemplate = fileURLToPath(new URL("sft/chat_template.jinja", recipes));
  const tokenizer = await Tokenizer.load(fileURLToPath(new URL("tools/model", recipes)), { chatTemplate });
  const columns = { inputKey: "messages", outputKey: "reply" };
  const read = async (name: string) =>
    (await readDataset(fileURLToPath(new URL(`sft/${name}.jsonl`, recipes)), columns)).rows;
  const [train, heldout] = [await read("train"), await read("heldout")];
  expect([train.length, heldout.length]).toEqual([400, 48]);
  for (const { messages, fields } of [...train, ...heldout]) {
    const tools = fields.tools as Record<string, unknown>[];
    const { tokens, mask } = await encodeDemonstration(tokenizer, messages, { tools });
    const [asked, call, price, told, more, reply] = messages;
    const item = /"of":"(\w+)"/.exec(`${call!.tool_calls![0]!.function.arguments}`)![1];
    const turns = [`[price of=${item}]`, `${price!.content} each`, reply!.content!];
    expect(told!.content).toBe(turns[1]);
    const before = ["<bos><tool>price: what one costs<end><user>", "<tool>", "<user>"];
    const said = [asked!.content, price!.content, more!.content];
    const text = turns.map((turn, at) => `${before[at]}${said[at]}<end><asst>${turn}<end>`).join("");
    expect(await tokenizer.decode([...tokens])).toBe(text);
    const trained = await tokenizer.decode([...tokens].filter((_, t) => mask[t] === 1));
    expect(trained).toBe(turns.map((turn) => `${turn}<end>`).join(""));
    expect(tokens.length).toBeLessThanOrEqual(128);
  }
  expect(new Set([...train, ...heldout].map(({ fields }) => JSON.stringify(fields))).size).toBe(448);
});

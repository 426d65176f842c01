import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { describe, expect, it } from "vitest";
import { type FieldRule, requestFields, type WireName } from "./fields.ts";

/** Members of an interface in a package's declarations; generated code, one member a line. */
function membersOf(packageName: string, file: string, name: string): string[] {
  const folder = dirname(createRequire(import.meta.url).resolve(packageName));
  const text = readFileSync(join(folder, "resources", file), "utf8");
  const body = new RegExp(`^export interface ${name} \\{\\n(.*?)^\\}`, "ms").exec(text)![1]!;
  return [...body.matchAll(/^ {4}(\w+)\??:/gm)].map((match) => match[1]!);
}

// What vLLM adds to OpenAI's, and what Anthropic's types of 2026 dropped and agents still send.
const older = ["temperature", "top_k", "top_p"];
const vllm = ["min_p", "repetition_penalty", "return_token_ids", "top_k"];

describe("the table of request fields (case H4)", () => {
  it.each([
    ["chat", "openai", ["chat/completions/completions.d.ts", "ChatCompletionCreateParamsBase"], vllm],
    ["completions", "openai", ["completions.d.ts", "CompletionCreateParamsBase"], vllm],
    ["responses", "openai", ["responses/responses.d.ts", "ResponseCreateParamsBase"], []],
    ["messages", "@anthropic-ai/sdk", ["beta/messages/messages.d.ts", "MessageCreateParamsBase"], older],
  ] as const)("of %s names every field of the SDK's types, and no other", (wire, packageName, [file, name], more) => {
    const members = membersOf(packageName, file, name);
    expect(members.length).toBeGreaterThan(15);
    const { others, ...fields } = requestFields[wire];
    expect(others).toBeDefined();
    expect(Object.keys(fields).sort()).toEqual([...new Set([...members, ...more])].sort());
  });

  it("of messages has those of the stable API too", () => {
    const members = membersOf("@anthropic-ai/sdk", "messages/messages.d.ts", "MessageCreateParamsBase");
    expect(members.filter((name) => !(name in requestFields.messages))).toEqual([]);
  });

  it("is what docs/wires.md shows: `npx vitest run FILE --update` writes it", async () => {
    await expect(wiresPage()).toMatchFileSnapshot("../../../../docs/wires.md");
  });
});

const routes: [WireName, string][] = [
  ["chat", "POST /v1/chat/completions"],
  ["messages", "POST /v1/messages"],
  ["responses", "POST /v1/responses"],
  ["completions", "POST /v1/completions"],
  ["tokens", "POST /inference/v1/generate"],
];

const heading = `# The wires

An agent that speaks OpenAI's or Anthropic's API talks to the policy through the gateway. Each wire is translated to one
neutral request and back; what the policy sampled is kept as token ids beside it, and they are what is trained.

- **mapped**: does what the API says.
- **overridden**: the recipe's sampling holds, so that what is trained is what the policy samples; it is recorded.
- **ignored**: changes nothing that is sampled.
- **refused**: gets the wire's own 400, unless the value asks for nothing: null, empty, or one of those in brackets.

Replies are taken apart by the model's chat template: reasoning in \`<think>\` becomes \`reasoning_content\`, a thinking
block (where the request enables thinking) or a reasoning item. Tool calls are read in the layouts of Hermes and Qwen,
Qwen's XML, GLM, DeepSeek, Mistral and Llama (JSON and pythonic). At start one call is rendered with the template
and read back; where it does not come back, a warning says so and calls stay text. A malformed call stays content.
Arguments keep the text that was sampled: 1.0 stays 1.0.

Streams have each API's own events in their order. They are sent once the reply is whole, each text in one piece.
`;

function wiresPage(): string {
  const tables = routes.map(([wire, route]) => {
    const { others, ...fields } = requestFields[wire];
    const rows = [...Object.entries(fields), ["any other", others] as [string, FieldRule]];
    const lines = rows.map(([name, [use, why, neutral]]) => {
      const allowed = neutral ? ` (${neutral.map((value) => `\`${JSON.stringify(value)}\``).join(", ")})` : "";
      return `| ${name === "any other" ? name : `\`${name}\``} | ${use}${allowed} | ${why} |`;
    });
    return `\n## \`${route}\`\n\n| field | use | why |\n|---|---|---|\n${lines.join("\n")}\n`;
  });
  return heading + tables.join("");
}

import { ChatAgent, type ChatContext, type ChatResult } from "molt-runner";
import OpenAI from "openai";

/** `get` looks a key up in the row's hidden table; `=7` answers. */
const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: "function",
    function: {
      name: "get",
      description: "What the table holds at a key: a digit, or the key to look at next.",
      parameters: { type: "object", properties: { key: { type: "string" } }, required: ["key"] },
    },
  },
];
const maxTurns = 5;

/** An agent as one would write it for any server, given this one's address. */
export default class FollowPointers extends ChatAgent {
  async run({ row, baseUrl, apiKey, model, signal }: ChatContext): Promise<ChatResult> {
    const client = new OpenAI({ baseURL: baseUrl, apiKey });
    const table = row.fields.table as Record<string, string>;
    const messages = [...row.messages] as OpenAI.ChatCompletionMessageParam[];
    for (let turn = 0; turn < maxTurns; turn++) {
      const completion = await client.chat.completions.create({ model, messages, tools }, { signal });
      const reply = completion.choices[0]!.message;
      messages.push(reply);
      if (!reply.tool_calls?.length) return { reward: reply.content === `=${row.label}` ? 1 : 0 };
      for (const call of reply.tool_calls) {
        const { key } = call.type === "function" ? JSON.parse(call.function.arguments) : {};
        messages.push({ role: "tool", tool_call_id: call.id, content: table[key] ?? "?" });
      }
    }
    return { reward: 0 };
  }
}

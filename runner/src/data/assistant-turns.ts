import type { Message } from "../agents/types.ts";
import { RunnerError } from "../errors.ts";
import { type ChatTemplate, mark, type ToolSchema, takeMarks } from "./chat-template.ts";

/**
 * Where assistants' turns lie in one rendering of a whole conversation, which may show a turn otherwise than it did
 * when that was the last. The template's generation tags say it, as transformers' `return_assistant_tokens_mask` reads
 * them; without them, the end of each message is marked, and a turn begins with the template's opener after the message
 * before it, and ends with the first of `closers` after its own. A turn is `start..end` in `text`, as it would be
 * sampled, its end of turn included.
 */
export function renderTurns(template: ChatTemplate, closers: string[], messages: Message[], tools?: ToolSchema[]) {
  const { tagsGenerations: markGenerations } = template;
  const text = template.render(messages, { tools });
  const shown = markGenerations ? messages : messages.map(withMark);
  const { text: plain, marks } = takeMarks(template.render(shown, { tools, markGenerations }));
  if (plain !== text) throw untold("the template shows a message otherwise when its end is marked");
  if (markGenerations) {
    const pair = (_: unknown, turn: number) => ({ start: marks[2 * turn]!.at, end: marks[2 * turn + 1]!.at });
    return { text, turns: Array.from({ length: marks.length / 2 }, pair) };
  }
  const { opener } = template;
  const ends = new Map(marks.map(({ name, at }) => [Number(name), at]));
  let before = 0;
  const turns = messages.flatMap(({ role }, index) => {
    const [opened, said] = [text.indexOf(opener, before), ends.get(index) ?? -1];
    before = Math.max(before, said);
    if (role !== "assistant") return [];
    const closed = closers.filter((closer) => text.includes(closer, said));
    const start = opened + opener.length;
    if (opener === "" || opened < 0 || start > said || closed.length === 0) {
      throw untold(`the turn of message ${index}, its opener or its end of turn, is not in what the template shows`);
    }
    return { start, end: Math.min(...closed.map((closer) => text.indexOf(closer, said) + closer.length)) };
  });
  return { text, turns };
}

/** At the end of what it says, and of the last call's name. */
function withMark(message: Message, index: number): Message {
  const { content, tool_calls: calls = [] } = message;
  const marked = content ? content.replace(/\s*$/, (space) => mark(index) + space) : content;
  const toolCalls = calls.map(({ function: called, ...call }, at) => {
    const name = called.name + (at === calls.length - 1 ? mark(index) : "");
    return { ...call, function: { ...called, name } };
  });
  return { ...message, content: marked, ...(calls.length > 0 && { tool_calls: toolCalls }) };
}

function untold(why: string): RunnerError {
  return new RunnerError(`where assistants' turns lie in this conversation is not to be told: ${why}`, {
    fix: "put {% generation %} and {% endgeneration %} around an assistant's turn in a template of data.chat_template",
  });
}

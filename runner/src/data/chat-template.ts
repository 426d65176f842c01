import { Template } from "@huggingface/jinja";
import type { Message } from "../agents/types.ts";
import { fileError, messageOf, RunnerError } from "../errors.ts";
import { isObject } from "./config-json.ts";

/** JSON Schema functions in OpenAI's form. */
export type ToolSchema = Record<string, unknown>;

export interface RenderOptions {
  tools?: ToolSchema[];
  addGenerationPrompt?: boolean;
  /** With marks (see `mark`) where the template's own generation tags are: "begin" and "end". */
  markGenerations?: boolean;
}

/** No character of texts, so that it can be told from theirs and taken out again. */
export function mark(name: string | number): string {
  return `\uFDD0${name}\uFDD1`;
}

/** A rendering without its marks, and where which were. */
export function takeMarks(text: string): { text: string; marks: { name: string; at: number }[] } {
  const marks: { name: string; at: number }[] = [];
  let taken = 0;
  const plain = text.replace(/\uFDD0(\w+)\uFDD1/g, (found: string, name: string, at: number) => {
    marks.push({ name, at: at - taken });
    taken += found.length;
    return "";
  });
  return { text: plain, marks };
}

/** transformers' tags around what the model generates. */
const generationTag = /\{%(-?)\s*(end)?generation\s*(-?)%\}/g;

/** Those that the engine implements; others would fail, or differ from Python, in mid-run. */
const filters = new Set(
  `abs bool capitalize default dictsort first float get indent int items join keys last length list lower lstrip map
   rejectattr replace reverse rstrip safe selectattr sort split startswith endswith string strip title tojson trim
   unique upper values`.split(/\s+/),
);
const unsupportedMethods = new Set(["find", "rfind", "format", "index", "count", "zfill"]);
const dateCodes = /%(?![dmbBYHM%])./;

/** A Hugging Face chat template, rendered as `transformers` does. */
export class ChatTemplate {
  private readonly template: Template;
  private marked: Template | undefined;
  /** Whether arguments are shown as the text that they are, so that 1.0 stays 1.0. */
  private readonly takesArgumentText: boolean;
  /** Whether a round looks the same wherever it stands, so that of a long conversation the end alone is rendered. */
  readonly repeatsRounds: boolean;

  /** `where` names the file in errors; `variables` are the special tokens' texts (`bos_token`, …). */
  constructor(
    private readonly source: string,
    private readonly where: string,
    private readonly variables: Record<string, string>,
  ) {
    this.template = parseTemplate(withBlocks(source), where);
    this.takesArgumentText = this.probeArguments();
    this.repeatsRounds = this.probeRounds();
  }

  /** Whether it says itself what the model generates. */
  get tagsGenerations(): boolean {
    return this.source.search(generationTag) >= 0;
  }

  /** What it writes before an assistant's turn; empty where that is not to be told. */
  get opener(): string {
    const user: Message = { role: "user", content: "a" };
    const asked = this.render([user], { addGenerationPrompt: true });
    // A thought that is begun for the model is shown with its turn, or not at all.
    return asked.slice(this.render([user]).length).replace(/<think>\s*$/, "");
  }

  render(messages: Message[], { tools, addGenerationPrompt = false, markGenerations }: RenderOptions = {}): string {
    const shown = this.takesArgumentText ? messages : messages.map(withParsedArguments);
    if (markGenerations) this.marked ??= new Template(withBlocks(this.source, mark));
    try {
      return this.renderRaw(shown, tools, addGenerationPrompt, markGenerations ? this.marked : this.template);
    } catch (error) {
      throw new RunnerError(`the chat template refuses this conversation: ${messageOf(error)}`, {
        position: { file: this.where },
        cause: error,
      });
    }
  }

  private renderRaw(messages: Message[], tools?: ToolSchema[], addGenerationPrompt = false, template = this.template) {
    const generation = { add_generation_prompt: addGenerationPrompt };
    return template.render({ ...this.variables, messages, tools: tools ?? null, ...generation });
  }

  private probeRounds(): boolean {
    const round: Message[] = [
      { role: "user", content: "a" },
      { role: "assistant", content: "b" },
    ];
    try {
      const [first = "", ...longer] = Array.from({ length: 12 }, (_, rounds) => {
        return this.renderRaw([...Array(rounds).fill(round).flat(), round[0]!], undefined, true);
      });
      const added = longer[0]!.slice(first.length);
      return longer.every((text, at) => text === first + added.repeat(at + 1));
    } catch {
      return false; // It wants more than these.
    }
  }

  private probeArguments(): boolean {
    const called = { name: "f", arguments: '{"x": "y"}' };
    const messages: Message[] = [
      { role: "user", content: "a" },
      { role: "assistant", content: null, tool_calls: [{ type: "function", function: called }] },
    ];
    try {
      return this.renderRaw(messages, undefined, false).includes(called.arguments);
    } catch {
      return false; // It cannot take a text, or no tool call at all.
    }
  }
}

function parseTemplate(source: string, where: string): Template {
  const refuse = (what: string) =>
    fileError(
      where,
      `this chat template uses Jinja that is not supported here: ${what}`,
      "give a simpler template with data.chat_template",
    );
  let template: Template;
  try {
    template = new Template(source);
  } catch (error) {
    throw refuse(messageOf(error));
  }
  const found = [...new Set(findUnsupported(template.parsed))];
  if (found.length > 0) throw refuse(found.join(", "));
  return template;
}

/** With blocks for tags, which whitespace is trimmed around as in Python; they show the tag's name through `show`. */
function withBlocks(source: string, show = (_name: string) => ""): string {
  return source.replace(generationTag, (_, left: string, end: string | undefined, right: string) => {
    return `{%${left} if true %}{{ '${show(end ? "end" : "begin")}' }}{% endif ${right}%}`;
  });
}

interface Node {
  type?: string;
  value?: unknown;
  filter?: Node;
  callee?: Node;
  property?: Node;
  args?: Node[];
}

function* findUnsupported(node: unknown): Generator<string> {
  if (typeof node !== "object" || node === null) return;
  const { type, filter, callee, args } = node as Node;
  if (type === "FilterExpression") {
    const name = String(filter?.callee?.value ?? filter?.value);
    if (!filters.has(name)) yield `the filter ${name}`;
  }
  if (type === "CallExpression" && callee?.type === "MemberExpression") {
    const name = String(callee.property?.value);
    if (unsupportedMethods.has(name)) yield `the method .${name}()`;
  }
  if (type === "CallExpression" && callee?.value === "strftime_now") {
    const code = dateCodes.exec(String(args?.[0]?.value))?.[0];
    if (code) yield `${code} in strftime_now`;
  }
  for (const child of node instanceof Map ? [...node].flat() : Object.values(node)) yield* findUnsupported(child);
}

/** For templates that walk through arguments. */
function withParsedArguments(message: Message): Message {
  const calls = message.tool_calls?.map((call) => {
    return { ...call, function: { ...call.function, arguments: parseArguments(call.function.arguments) } };
  });
  return calls ? { ...message, tool_calls: calls } : message;
}

function parseArguments(input: string | Record<string, unknown>): string | Record<string, unknown> {
  if (typeof input !== "string") return input;
  try {
    const parsed = JSON.parse(input);
    return isObject(parsed) ? parsed : input;
  } catch {
    return input; // What the policy wrote need not be JSON.
  }
}

import { Template } from "@huggingface/jinja";
import type { Message } from "../agents/types.ts";
import { messageOf, RunnerError, usageError } from "../errors.ts";

/** Tools as the template shows them: JSON Schema functions in OpenAI's form. */
export type ToolSchema = Record<string, unknown>;

export interface RenderOptions {
  tools?: ToolSchema[];
  /** Ends with the opening of an assistant turn. */
  addGenerationPrompt?: boolean;
}

/** What the engine implements; others would fail, or differ from Python, in the middle of a run. */
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
  private readonly variables: Record<string, string>;
  private readonly where: string;
  /** Whether a tool call's arguments are shown as the text that they are, so that 1.0 stays 1.0. */
  private readonly takesArgumentText: boolean;

  /** `where` names the file for messages; `variables` are the special tokens' texts (`bos_token`, …). */
  constructor(source: string, where: string, variables: Record<string, string>) {
    this.where = where;
    this.variables = variables;
    this.template = parseTemplate(source, where);
    this.takesArgumentText = this.probeArguments();
  }

  render(messages: Message[], { tools, addGenerationPrompt = false }: RenderOptions = {}): string {
    const shown = this.takesArgumentText ? messages : messages.map(withParsedArguments);
    try {
      return this.renderRaw(shown, tools, addGenerationPrompt);
    } catch (error) {
      throw new RunnerError(`the chat template refuses this conversation: ${messageOf(error)}`, {
        position: { file: this.where },
        cause: error,
      });
    }
  }

  private renderRaw(messages: Message[], tools: ToolSchema[] | undefined, addGenerationPrompt: boolean): string {
    const generation = { add_generation_prompt: addGenerationPrompt };
    return this.template.render({ ...this.variables, messages, tools: tools ?? null, ...generation });
  }

  private probeArguments(): boolean {
    const withArguments = (input: string | Record<string, unknown>): Message[] => [
      { role: "user", content: "a" },
      { role: "assistant", content: "", tool_calls: [{ type: "function", function: { name: "f", arguments: input } }] },
    ];
    try {
      const asText = this.renderRaw(withArguments('{"x": "y"}'), undefined, false);
      return asText === this.renderRaw(withArguments({ x: "y" }), undefined, false);
    } catch {
      return false; // It cannot take a text, or no tool call at all.
    }
  }
}

function parseTemplate(source: string, where: string): Template {
  let template: Template;
  const fix = "give a simpler template with data.chat_template";
  try {
    template = new Template(source);
  } catch (error) {
    const message = `this chat template uses Jinja that is not supported here: ${messageOf(error)}`;
    throw usageError(message, { position: { file: where }, fix });
  }
  const found = [...new Set(findUnsupported(template.parsed))];
  if (found.length > 0) {
    const message = `this chat template uses Jinja that is not supported here: ${found.join(", ")}`;
    throw usageError(message, { position: { file: where }, fix });
  }
  return template;
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
  if (node instanceof Map) {
    for (const [key, value] of node) yield* [...findUnsupported(key), ...findUnsupported(value)];
    return;
  }
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
  for (const child of Object.values(node)) yield* findUnsupported(child);
}

/** For templates that walk through arguments as a mapping. */
function withParsedArguments(message: Message): Message {
  if (!message.tool_calls) return message;
  return {
    ...message,
    tool_calls: message.tool_calls.map((call) => ({
      ...call,
      function: { ...call.function, arguments: parseArguments(call.function.arguments) },
    })),
  };
}

function parseArguments(input: string | Record<string, unknown>): string | Record<string, unknown> {
  if (typeof input !== "string") return input;
  try {
    const parsed = JSON.parse(input);
    return typeof parsed === "object" && parsed !== null && !Array.isArray(parsed) ? parsed : input;
  } catch {
    return input; // What the policy wrote need not be JSON.
  }
}

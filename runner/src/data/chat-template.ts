import { Template } from "@huggingface/jinja";
import type { Message } from "../agents/types.ts";
import { fileError, messageOf, RunnerError } from "../errors.ts";
import { isObject } from "./config-json.ts";

/** JSON Schema functions in OpenAI's form. */
export type ToolSchema = Record<string, unknown>;

export interface RenderOptions {
  tools?: ToolSchema[];
  addGenerationPrompt?: boolean;
}

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
  private readonly variables: Record<string, string>;
  private readonly where: string;
  /** Whether arguments are shown as the text that they are, so that 1.0 stays 1.0. */
  private readonly takesArgumentText: boolean;
  /** Whether a round looks the same wherever it stands, so that of a long conversation the end alone is rendered. */
  readonly repeatsRounds: boolean;

  /** `where` names the file in errors; `variables` are the special tokens' texts (`bos_token`, …). */
  constructor(source: string, where: string, variables: Record<string, string>) {
    this.where = where;
    this.variables = variables;
    this.template = parseTemplate(source, where);
    this.takesArgumentText = this.probeArguments();
    this.repeatsRounds = this.probeRounds();
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

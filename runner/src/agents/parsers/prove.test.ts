import { describe, expect, it } from "vitest";
import { ChatTemplate } from "../../data/chat-template.ts";
import { chooseFormat } from "./formats.ts";
import { proveFormat } from "./prove.ts";

/** Small templates that lay calls out as each family's own does. */
const turns = (assistant: string, opening = "<|im_start|>assistant\n") =>
  "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" +
  "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content or '' }}" +
  `{% for c in m.tool_calls or [] %}${assistant}{% endfor %}<|im_end|>\n` +
  "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}" +
  `{% if add_generation_prompt %}${opening}{% endif %}`;

const json = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}';
const items = "{% for k, v in c.function.arguments.items() %}";
const value = "{{ v if v is string else v | tojson }}";

const families: Record<string, string> = {
  hermes: turns(`<tool_call>\n${json}\n</tool_call>`),
  "qwen-xml": turns(
    `<tool_call>\n<function={{ c.function.name }}>\n${items}<parameter={{ k }}>\n${value}\n</parameter>\n` +
      "{% endfor %}</function>\n</tool_call>",
  ),
  glm: turns(
    `<tool_call>{{ c.function.name }}\n${items}<arg_key>{{ k }}</arg_key>\n<arg_value>${value}</arg_value>\n` +
      "{% endfor %}</tool_call>",
  ),
  mistral: turns(`[TOOL_CALLS] [${json}]`),
  pythonic: `{# [func_name1(params)] #}${turns(
    `[{{ c.function.name }}(${items}{{ k }}={{ "'" ~ v ~ "'" if v is string else v | tojson }}` +
      "{% if not loop.last %}, {% endif %}{% endfor %})]",
  )}`,
  "llama-json": turns(json.replace('"arguments"', '"parameters"')),
  // Arguments as the text that the message holds, and content must be null, as DeepSeek V3's.
  deepseek: turns(
    "{{ raise_exception('content') if m.content is not none }}<｜tool▁calls▁begin｜>" +
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}\n" +
      "```json\n{{ c.function.arguments }}\n```<｜tool▁call▁end｜>",
  ),
};

function prove(source: string) {
  const template = new ChatTemplate(source, "template.jinja", {});
  return proveFormat(chooseFormat(source), (messages, options) => template.render(messages, options));
}

describe("proveFormat (case A7)", () => {
  it.each(Object.entries(families))("reads back what a %s template renders", (name, source) => {
    const { format, warning } = prove(source);
    expect([format.name, warning]).toEqual([name, null]);
  });

  it("finds who opens the reasoning, whatever the template makes of it later", () => {
    const knows = "{# </think> #}";
    expect(prove(`${knows}${families.hermes}`).format).toMatchObject({ thinks: true, opensThink: false });
    const opens = prove(`${knows}${turns(`<tool_call>\n${json}\n</tool_call>`, "<|im_start|>assistant\n<think>\n")}`);
    expect(opens).toMatchObject({ format: { name: "hermes", thinks: true, opensThink: true }, warning: null });
  });

  it("is silent about a template that shows no calls", () => {
    expect(prove(turns(""))).toMatchObject({ format: { name: "plain" }, warning: null });
  });

  it.each([
    // Another layout than the words in it make one believe.
    ["hermes", turns("<tool_call>call:{{ c.function.name }}</tool_call>"), '"<tool_call>call:probe</tool_call>"'],
    // A layout that nobody knows.
    ["plain", turns("<|call|>{{ c.function.name }}({{ c.function.arguments | tojson }})"), "<|call|>probe("],
    ["hermes", turns("<tool_call>{{ raise_exception('no calls here') }}"), "no calls here"],
    ["hermes", turns("{# <tool_call> #}"), "it renders none"],
  ])("warns where a call does not come back (%s), and leaves calls as text", (name, source, shown) => {
    expect(chooseFormat(source).name).toBe(name);
    const { format, warning } = prove(source);
    expect([format.name, format.open]).toEqual(["plain", null]);
    expect(warning).toContain(`tool calls stay text: the template's are not ${name}`);
    expect(warning).toContain(shown);
  });

  it("of no template is plain", () => {
    expect(chooseFormat(null)).toMatchObject({ name: "plain", thinks: false, opensThink: false });
  });
});

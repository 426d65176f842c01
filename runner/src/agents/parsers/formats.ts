/** Whether a tool takes a parameter as text, so that 007 is not a number: for formats that write text unquoted. */
export type TakesText = (tool: string, parameter: string) => boolean;

/** Says a block of calls as JSON, an object with name and arguments or a list of these; null where it is not calls. */
type AsJson = (block: string, takesText: TakesText) => string | null;

/** How a model lays out a reply, as its chat template shows. */
export interface ReplyFormat {
  name: string;
  /** Stands before calls. Null: the whole text is calls, or none is. */
  open: string | null;
  /** Stands after them. Null: they end where the next begin, or the text does. */
  close: string | null;
  asJson: AsJson;
  /** Whether the template knows reasoning in `<think>…</think>`. */
  thinks: boolean;
  /** Whether it opens that itself, so that the reply begins inside. */
  opensThink: boolean;
}

function callJson(name: string, input: string): string {
  return `{"name": ${JSON.stringify(name)}, "arguments": ${input}}`;
}

/** Several stand apart by semicolons. */
const llamaAsJson: AsJson = (block) => {
  const calls = block.replace(/^<\|python_tag\|>/, "");
  return `[${calls.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|;/gs, (part) => (part === ";" ? "," : part))}]`;
};

/** A list of objects; newer tokenizers write a name, then its arguments. */
const mistralAsJson: AsJson = (block) => {
  const [, name, input] = /^([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)$/s.exec(block) ?? [];
  return name ? callJson(name, input!) : block;
};

/** As of V3.1 a name, the separator and JSON; before, the word function, the separator, a name and JSON in a fence. */
const deepSeekAsJson: AsJson = (block) => {
  // Models write the end of all calls; V3's own template forgets it.
  const [first, ...calls] = block.replace(/<｜tool▁calls▁end｜>$/, "").split("<｜tool▁call▁begin｜>");
  const said = calls.map((call) => {
    const newer = call.replace(/^function<｜tool▁sep｜>(.+)\n```json\n/, "$1<｜tool▁sep｜>");
    const [name, rest] = newer.split("<｜tool▁sep｜>");
    const input = /^(.*?)(?:\n```)?<｜tool▁call▁end｜>\s*$/s.exec(rest ?? "")?.[1];
    return name && input ? callJson(name, input) : null;
  });
  return first !== "" || said.includes(null) ? null : `[${said.join(", ")}]`;
};

const pythonWords: Record<string, string> = { True: "true", False: "false", None: "null" };

/** Of text without quotes: JSON, in Python's words too, unless it is text. */
function bareJson(value: string, isText: boolean): string {
  const json = Object.hasOwn(pythonWords, value) ? pythonWords[value]! : value;
  try {
    return isText || typeof JSON.parse(json) === "string" ? JSON.stringify(value) : json;
  } catch {
    return JSON.stringify(value);
  }
}

/** A head that names the tool, then pairs of key and value, each after a mark. */
function xmlAsJson(head: RegExp, mark: string, pair: RegExp): AsJson {
  return (block, takesText) => {
    const [first, ...rest] = block.split(mark);
    const name = head.exec(first!)?.[1];
    const pairs = rest.map((one) => pair.exec(one)?.slice(1));
    if (!name || pairs.includes(undefined)) return null;
    const members = (pairs as [string, string][]).map(([key, value]) => {
      return `${JSON.stringify(key)}: ${bareJson(value, takesText(name, key))}`;
    });
    return callJson(name, `{${members.join(", ")}}`);
  };
}

/** `<function=name><parameter=key>value</parameter>…</function>`. */
const functionPair = /^([^>]+)>\n?(.*?)\n?<\/parameter>\s*(?:<\/function>)?$/s;
const functionAsJson = xmlAsJson(/^<function=([^>]+)>\s*(?:<\/function>)?$/, "<parameter=", functionPair);

/** `name<arg_key>key</arg_key><arg_value>value</arg_value>…`. */
const glmPair = /^(.*?)<\/arg_key>\s*<arg_value>(.*)<\/arg_value>\s*$/s;
const glmAsJson = xmlAsJson(/^([\w.-]+)\s*$/, "<arg_key>", glmPair);

const quotedPattern = /"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'/.source;
/** A word and what opens or names with it, a number, a string, a mark. */
const pythonToken = new RegExp(
  `\\s*(?:([A-Za-z_][\\w.]*)\\s*([(=]?)|(-?\\d[\\w.+-]*)|(${quotedPattern})|([[\\]{},:)]))`,
  "sy",
);
const pythonMarks: Record<string, string> = { ")": "}}", ",": ", ", ":": ": " };
const pythonEscapes: Record<string, string> = { n: "\n", r: "\r", t: "\t", "\n": "", "\\": "\\", "'": "'", '"': '"' };

/** `[name(key=value), …]`, token by token, so that numbers keep their text. */
const pythonicAsJson: AsJson = (block) => {
  const source = block.replace(/^<\|python_start\|>/, "").replace(/<\|python_end\|>$/, "");
  let json = "";
  let isInCall = false;
  for (pythonToken.lastIndex = 0; pythonToken.lastIndex < source.length; ) {
    const [whole, word, after, number, quoted, mark] = pythonToken.exec(source) ?? [];
    const opens = after === "(";
    if (whole === undefined || ((opens || mark === ")") && opens === isInCall)) return null;
    if (opens || mark === ")") isInCall = opens;
    const named = opens ? `{"name": "${word}", "arguments": {` : after ? `"${word}": ` : (pythonWords[word!] ?? word);
    json += named ?? number ?? (quoted ? JSON.stringify(unquote(quoted)) : (pythonMarks[mark!] ?? mark));
  }
  return source.startsWith("[") ? json : null;
};

function unquote(quoted: string): string {
  return quoted.slice(1, -1).replace(/\\(x[\da-f]{2}|u[\da-f]{4}|.)/gis, (whole, code: string) => {
    return code.length > 1 ? String.fromCharCode(Number.parseInt(code.slice(1), 16)) : (pythonEscapes[code] ?? whole);
  });
}

export type Layout = Pick<ReplyFormat, "name" | "open" | "close" | "asJson">;

export const plain: Layout = { name: "plain", open: null, close: null, asJson: () => null };
const xml = { open: "<tool_call>", close: "</tool_call>" };
const deepSeekOpen = "<｜tool▁calls▁begin｜>";
const pythonic = { name: "pythonic", open: null, close: null, asJson: pythonicAsJson };

/** By what only the format's own templates contain; the first that is found. */
const layouts: [sign: string, layout: Layout][] = [
  [deepSeekOpen, { name: "deepseek", open: deepSeekOpen, close: null, asJson: deepSeekAsJson }],
  ["<function=", { name: "qwen-xml", ...xml, asJson: functionAsJson }],
  ["<arg_key>", { name: "glm", ...xml, asJson: glmAsJson }],
  ["[TOOL_CALLS]", { name: "mistral", open: "[TOOL_CALLS]", close: null, asJson: mistralAsJson }],
  ["<tool_call>", { name: "hermes", ...xml, asJson: (block) => block }],
  ["<|python_start|>", pythonic],
  ["[func_name1(", pythonic],
  ['"parameters": ', { name: "llama-json", open: null, close: null, asJson: llamaAsJson }],
];

/** Chosen by the template's own words; whether it is right, and who opens the reasoning, `proveFormat` finds. */
export function chooseFormat(chatTemplate: string | null): ReplyFormat {
  const template = chatTemplate ?? "";
  const layout = layouts.find(([sign]) => template.includes(sign))?.[1] ?? plain;
  return { ...layout, thinks: template.includes("</think>"), opensThink: false };
}

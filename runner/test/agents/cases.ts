import type { Answer } from "./engine.ts";

/** Folders of what is installed, of the scripts that use the SDKs, and of the model's tokenizer. */
export interface Places {
  node: string;
  bin: string;
  python: string;
  clients: string;
  model: string;
}

export interface Case {
  name: string;
  /** Words. */
  command(places: Places): string[];
  /** Words; undefined: the command says its own reward. */
  grader?: string[];
  answer: Answer;
  /** With one tool turn each. */
  conversations: number;
  /** Titles and summaries beside the conversation: rows of their own. */
  hasSideRequests?: true;
}

const call = (name: string, input: object) =>
  `<tool_call>\n{"name": "${name}", "arguments": ${JSON.stringify(input)}}\n</tool_call>`;
/** As our template lays a tool's result out, and as verifiers does for Qwen3. */
const hasResult = (prompt: string) => /<\|im_start\|>tool\n|<tool_response>\n/.test(prompt);

const adds: Answer = (prompt) => (hasResult(prompt) ? "The sum is 5." : call("add", { a: 2, b: 3 }));

/** A coding agent writes a file with its tool; the grader reads that, in the same folder, and the agent's output. */
const work = "Write the word molt into made.txt with a shell command, then say so.";
const shell = "printf molt > made.txt && echo it-is-made";
const graded = [
  process.execPath,
  "-e",
  `const fs = require("fs");
  const { output } = JSON.parse(fs.readFileSync(0, "utf8"));
  const made = fs.readFileSync("made.txt", "utf8");
  console.log(JSON.stringify({ reward: made === "molt" && output.includes("made.txt holds molt") ? 1 : 0 }));`,
];
function codes(tool: string, input: object): Answer {
  return (prompt) => {
    if (!prompt.includes(`"${tool}"`)) return "A title";
    if (!hasResult(prompt)) return call(tool, input);
    return prompt.includes("it-is-made", prompt.lastIndexOf("<|im_start|>tool\n")) ? "made.txt holds molt" : "No.";
  };
}

/** It takes its provider from its configuration alone; $1 is the program, $2 the task. */
const codex = `exec "$1" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \\
  -m "$OPENAI_MODEL" -c model_provider=molt -c model_providers.molt.name=molt \\
  -c model_providers.molt.base_url="$OPENAI_BASE_URL" -c model_providers.molt.wire_api=responses \\
  -c model_providers.molt.env_key=OPENAI_API_KEY "$2" < /dev/null`;

export const cases: Case[] = [
  {
    name: "OpenAI's SDK for Node, chat and responses, whole and streamed",
    command: ({ node, clients }) => [process.execPath, `${clients}/openai_sdk.mjs`, `${node}/package.json`],
    answer: adds,
    conversations: 4,
  },
  {
    name: "OpenAI's SDK for Python, chat and responses, whole and streamed",
    command: ({ python, clients }) => [`${python}/python`, `${clients}/openai_sdk.py`],
    answer: adds,
    conversations: 4,
  },
  {
    name: "Anthropic's SDK for Node, whole and streamed",
    command: ({ node, clients }) => [process.execPath, `${clients}/anthropic_sdk.mjs`, `${node}/package.json`],
    answer: adds,
    conversations: 2,
  },
  {
    name: "Anthropic's SDK for Python, whole and streamed",
    command: ({ python, clients }) => [`${python}/python`, `${clients}/anthropic_sdk.py`],
    answer: adds,
    conversations: 2,
  },
  {
    name: "openai-agents, chat and responses, whole and streamed",
    command: ({ python, clients }) => [`${python}/python`, `${clients}/openai_agents.py`],
    answer: adds,
    conversations: 4,
  },
  {
    name: "Claude Code on the Messages wire, streamed",
    command: ({ bin }) => [
      ...["env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", `${bin}/claude`],
      ...["--print", "--allowedTools", "Bash", "--", work],
    ],
    grader: graded,
    answer: codes("Bash", { command: shell, description: "Write the file" }),
    conversations: 1,
    hasSideRequests: true,
  },
  {
    name: "Codex on the Responses wire, streamed",
    command: ({ bin }) => ["sh", "-c", codex, "codex", `${bin}/codex`, work],
    grader: graded,
    answer: codes("exec_command", { cmd: shell }),
    conversations: 1,
    hasSideRequests: true,
  },
  {
    name: "an environment of verifiers through its training client",
    command: ({ python, clients, model }) => [`${python}/python`, `${clients}/verifiers_eval.py`, model],
    answer: (prompt) => adds(prompt).replace('"add"', '"calculator_add"'),
    conversations: 1,
  },
];

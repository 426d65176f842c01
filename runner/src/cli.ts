import { readFileSync } from "node:fs";
import { Command, CommanderError, type CommandOptions, InvalidArgumentError, Option } from "commander";
import type { McpOptions } from "./commands/mcp.ts";
import type { VerbOptions } from "./commands/options.ts";
import type { ServeOptions } from "./commands/serve.ts";
import { ExitCode, messageOf, RunnerError, usageError } from "./errors.ts";
import { withoutSecrets } from "./secret.ts";

let exitCode: number = ExitCode.done;

/** Each verb loads its own module, so that starting costs what the verb needs. */
const verbs: Record<string, () => Promise<(...given: never[]) => unknown>> = {
  init: async () => {
    const [{ initCommand }, { scaffoldCommand }] = [
      await import("./commands/init.ts"),
      await import("./commands/scaffold.ts"),
    ];
    return (folder: string, name: string | undefined, options: { json: boolean }) => {
      const templates = (kind: string) => new URL(`../templates/${kind}/`, import.meta.url);
      if (name !== undefined && folder !== "agent") return scaffoldCommand(folder, name, templates("algorithms"));
      return initCommand(name ?? folder, options, { templates: templates("agent"), version: version() });
    };
  },
  check: async () => {
    const { checkCommand, explainCommand } = await import("./commands/check.ts");
    return (paths: string[], { json, format, flags, explain }: CheckOptions) => {
      const settings = { format: json ? "json" : format, flags, version: version() } as const;
      return explain === undefined ? checkCommand(paths, settings) : explainCommand(paths, explain, settings);
    };
  },
  import: async () => (await import("./commands/import.ts")).importCommand,
  plan: async () => (await import("./commands/plan.ts")).planCommand,
  run: async () => (await import("./commands/run.ts")).runCommand,
  sft: async () => (await import("./commands/sft.ts")).sftCommand,
  eval: async () => (await import("./commands/eval.ts")).evalCommand,
  resume: async () => (await import("./commands/resume.ts")).resumeCommand,
  fork: async () => (await import("./commands/fork.ts")).forkCommand,
  stop: async () => (await import("./commands/stop.ts")).stopCommand,
  export: async () => (await import("./commands/export.ts")).exportCommand,
  runs: async () => (await import("./commands/runs.ts")).runsCommand,
  watch: async () => (await import("./commands/watch.ts")).watchCommand,
  logs: async () => (await import("./commands/logs.ts")).logsCommand,
  report: async () => (await import("./commands/report.ts")).reportCommand,
  rescore: async () => (await import("./commands/rescore.ts")).rescoreCommand,
  replay: async () => (await import("./commands/replay.ts")).replayCommand,
  inspect: async () => (await import("./commands/inspect.ts")).inspectCommand,
  setup: async () => (await import("./commands/setup.ts")).setupCommand,
  doctor: async () => (await import("./commands/doctor.ts")).doctorCommand,
  context: async () => (await import("./commands/context.ts")).contextCommand,
  lsp: async () => (await import("./commands/lsp.ts")).lspCommand,
  mcp: async () => {
    const { mcpCommand } = await import("./commands/mcp.ts");
    return (options: McpOptions) => mcpCommand(options, version());
  },
  serve: async () => {
    const { serveCommand } = await import("./commands/serve.ts");
    return (options: ServeOptions) => serveCommand(options, version());
  },
  node: async () => (await import("./commands/node.ts")).nodeCommand,
  gate: async () => (await import("./launchers/gate.ts")).gateCommand,
  rank: async () => (await import("./trainer/rank.ts")).rankCommand,
};

type CheckOptions = VerbOptions & { format: "text" | "json" | "sarif" | "github"; explain?: string };

/** Of a verb on its arguments and its options; one that gives none is done. */
async function exitCodeOf(name: string, given: unknown[]): Promise<number> {
  const verb = await verbs[name]!();
  return ((await verb(...(given as never[]))) as number | undefined) ?? ExitCode.done;
}

function createProgram(): Command {
  const program = new Command("molt-runner")
    .description("Trains language-model agents with reinforcement learning.")
    .version(version(), "-v, --version")
    .configureHelp({ subcommandTerm: (command) => `${command.name()} ${command.usage()}` })
    .exitOverride()
    .configureOutput({ writeErr: () => {} });
  addRecipeVerbs(program);
  addRunVerbs(program);
  addLookVerbs(program);
  addMachineVerbs(program);
  addProcessVerbs(program);
  return program;
}

function addRecipeVerbs(program: Command): void {
  const agent = "write a new agent with its recipe, test and data; or `init estimator NAME`, `init loss NAME`";
  reportVerb(program, "init <folder> [name]", agent);
  const format = new Option("--format <format>", "of the report").choices(["text", "json", "sarif", "github"]);
  flagVerb(program, "check <recipe>…", "validate recipes and every file they name; starts nothing")
    .addOption(format.default("text"))
    .option("--explain <key>", "say one key's value, where it comes from, and what is known of it");
  const script = "write the recipe of a shell script that calls the Python original; executes nothing";
  reportVerb(program, "import <script>", script).option(
    "-o, --output <recipe>",
    "where to (default: the script's name, with .yaml, in this folder)",
  );
  flagVerb(program, "plan <recipe>", "say what a recipe needs and how long a step takes");
  detachable(flagVerb(program, "run <recipe>", "train by reinforcement learning"));
  detachable(flagVerb(program, "sft <recipe>", "train on the replies of a dataset"));
  flagVerb(program, "eval <recipe>", "evaluate a recipe's model, or in its place a run or an export, on held-out rows");
}

function addRunVerbs(program: Command): void {
  detachable(flagVerb(program, "resume <run-directory>", "go on with an interrupted run"));
  const fork = "go on from a step of a run as a new run, keys changed by flags";
  detachable(flagVerb(program, "fork <run>", fork)).option("--step <number>", "of a checkpoint (the newest)", integer);
  reportVerb(program, "stop <run>", "end a run in order: it finishes and saves the step at hand")
    .option("--now", "abandon the step at hand; the newest checkpoint stays", false)
    .option("--timeout <seconds>", "to wait for its end", integer, 600);
  reportVerb(program, "export <run>", "write a run's newest checkpoint as a Hugging Face folder")
    .option("-o, --output <folder>", "where to (default: export/ in the run directory, adapter/ with --adapter)")
    .option("--adapter", "its LoRA adapter alone, as a folder of peft's", false);
}

/** Verbs that look at runs: RUN is an id, the beginning of one, `latest`, or a path. */
function addLookVerbs(program: Command): void {
  reportVerb(program, "runs", "list runs, the newest first").option("--dir <folder>", "that holds them", "runs");
  reportVerb(program, "watch <run>", "show a run as it goes: charts on a terminal (q leaves), lines elsewhere");
  reportVerb(program, "logs <run>", "print a run's events").option("-f, --follow", "those to come too", false);
  reportVerb(program, "report <run>", "write a run's figures, charts, alarms and recipe as one HTML page")
    .option("-o, --output <file>", "where to (report.html in the run directory)")
    .option("--rollouts", "sampled prompts and replies too", false);
  const grader = new Option("--agent <file>", "that exports grade(text, label, rollout)").makeOptionMandatory();
  reportVerb(program, "rescore <run>", "grade a run's stored rollouts anew").addOption(grader);
  reportVerb(program, "replay <run> <rollout>", "run a rollout's agent again on what was sampled then");
  reportVerb(program, "inspect <run> [id]", "list a run's rollouts, or show one, or a group's, by turns and tokens")
    .option("--step <number>", "that consumed them", integer)
    .option("--reward <low..high>", "both included", range)
    .option("--tokens <low..high>", "of all segments", range)
    .option("--stop <reason>", "stop, length, context, max_turns, env_done, timeout, infra or abort")
    .option("--dropped <reason>", "why they were not trained")
    .option("--group <id>", "the rollouts of one prompt")
    .option("--limit <number>", "the newest", integer, 50);
}

function addMachineVerbs(program: Command): void {
  plainVerb(program, "setup", "install libtorch and build the native addon")
    .option("--tests", "also what the tests need", false)
    .option("--no-native", "only the JavaScript part")
    .option("--remove", "take away what an earlier set-up put in the user's cache", false);
  reportVerb(program, "doctor", "say which tools, caches and parts are there");
  const budget = new Option("--budget <tokens>", "of source to print").argParser(integer).default(20_000);
  const code = "print the code of this folder and of the runner, for people and assistants; executes none of it";
  reportVerb(program, "context", code)
    .option("--map", "rooms and files in a line each, with what they export and who imports whom", false)
    .option("--room <name...>", "only these: algorithms, engines/embedded", [])
    .addOption(budget.conflicts("map"));
}

/** Verbs that a run starts as processes of its own; `serve` is for people too. */
function addProcessVerbs(program: Command): void {
  plainVerb(program, "lsp", "the language server, for editors; speaks over stdio").option(
    "--stdio",
    "the only transport, for clients that name it",
  );
  plainVerb(program, "mcp", "tools for assistants over recipes, code and runs (Model Context Protocol, over stdio)")
    .option("--root <folder>", "that they may look at", ".")
    .option("--allow-launch", "also what writes files, executes code and starts or stops runs", false);
  plainVerb(program, "serve", "serve a model with the embedded engine (vLLM's protocol)")
    .requiredOption("--model <folder>", "Hugging Face model folder")
    .addOption(new Option("--init <kind>", "where the weights come from").choices(["weights", "random"]))
    .option("--host <address>", "address to listen on (127.0.0.1)")
    .option("--port <number>", "0 takes a free one (8000)", integer)
    .option("--seed <number>", "of random weights, and of requests without one (0)", integer)
    .addOption(new Option("--dtype <kind>", "of matmuls and the cache (float32)").choices(["float32", "bf16"]))
    .option("--max-num-seqs <number>", "sequences decoded at once (256)", integer)
    .option("--max-model-len <number>", "tokens of a request, prompt and output (the model's context)", integer)
    .option("--page-size <number>", "tokens of a cache page (16)", integer)
    .option("--cache-tokens <number>", "tokens that the cache holds", integer)
    .option("--threads <number>", "threads of the native operators", integer)
    .option("--max-queue <number>", "sequences that run and wait at once, before 503 (16384)", integer)
    .option("--max-body <MiB>", "of a request (64)", integer)
    .option("--enable-return-routed-experts", "answers tell the experts of each token (a mixture's)")
    .option("--api-key <key>", "asked of every request but /health (environment: MOLT_API_KEY)");
  const node = "one machine of a run on several, which launchers start (token: MOLT_TOKEN)";
  plainVerb(program, "node", node).requiredOption("--join <url>", "of the controller");
  plainVerb(program, "gate", "", { hidden: true })
    .requiredOption("--host <address>")
    .requiredOption("--to <port>", "", integer);
  plainVerb(program, "rank", "", { hidden: true })
    .requiredOption("--controller <url>")
    .requiredOption("--rank <number>", "", integer);
}

/** `usage`: the verb and its arguments. */
function plainVerb(program: Command, usage: string, description: string, options?: CommandOptions): Command {
  const command = program.command(usage, options).description(description);
  return command.action(async (...given: unknown[]) => {
    // The last is the command itself.
    exitCode = await exitCodeOf(command.name(), given.slice(0, -1));
  });
}

function reportVerb(program: Command, usage: string, description: string): Command {
  return plainVerb(program, usage, description).option("--json", "report in JSON", false);
}

/** The recipe's keys are flags that commander does not know: all words are taken as they come. */
function flagVerb(program: Command, usage: string, description: string): Command {
  const [name, targets] = usage.split(" ") as [string, string];
  const target = targets.replace("…", "");
  return program
    .command(name)
    .description(description)
    .usage(`${targets} [--section.key value …]`)
    .argument("[words...]")
    .option("--json", "report in JSON", false)
    .addHelpText("after", "\nEvery key of a recipe is a flag: --actor.adam.lr 1e-3, --rollout.batch_size=64.")
    .allowUnknownOption()
    .action(async (words: string[], options: object) => {
      const { splitArguments } = await import("./recipe/flags.ts");
      const { positionals, flags } = splitArguments(words);
      const [first, ...others] = positionals;
      if (first === undefined) throw usageError(`${name} needs a ${target}: none is given`);
      const isOne = target === targets;
      if (isOne && others.length > 0)
        throw usageError(`${name} takes one ${target}: ${positionals.join(" ")} are given`);
      exitCode = await exitCodeOf(name, [isOne ? first : positionals, { ...options, flags }]);
    });
}

function detachable(command: Command): Command {
  return command.option("--detach", "in a process of its own, which goes on without this one", false);
}

function integer(text: string): number {
  if (!/^\d+$/.test(text)) throw new InvalidArgumentError("it must be an integer of at least 0.");
  return Number(text);
}

function range(text: string): [number, number] {
  const [low, high = low] = text.split("..").map(Number);
  if (!(low! <= high!)) throw new InvalidArgumentError("it must be a number, or two as low..high.");
  return [low!, high!];
}

function version(): string {
  return JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")).version;
}

async function main(words: string[]): Promise<number> {
  const program = createProgram();
  if (words.length === 0) {
    program.outputHelp();
    return ExitCode.usage;
  }
  try {
    await program.parseAsync(words, { from: "user" });
    return exitCode;
  } catch (error) {
    if (error instanceof CommanderError && error.exitCode === 0) return ExitCode.done;
    const known = toRunnerError(error);
    await (words.includes("--json") ? printJson(known) : printText(known));
    return known.exitCode;
  }
}

function toRunnerError(error: unknown): RunnerError {
  if (error instanceof RunnerError) return error;
  // The set-up is plain JavaScript with an error class of its own, which brings its fix.
  if (error instanceof Error && error.name === "SetupError") return usageError(error.message);
  // The machine's reasons (a full disk, no right to write): no stack of ours explains them.
  if (error instanceof Error && "syscall" in error) return new RunnerError(error.message, { cause: error });
  if (!(error instanceof CommanderError)) {
    return new RunnerError(`unexpected: ${(error instanceof Error && error.stack) || messageOf(error)}`, {
      cause: error,
    });
  }
  const [message, hint] = error.message.split("\n");
  const meant = /\(Did you mean (?:one of )?(.+)\?\)/.exec(hint ?? "")?.[1];
  const suggestion = meant === undefined ? "" : `: did you mean '${meant}'?`;
  return usageError(`${message!.replace(/^error: /, "")}${suggestion}`, {
    fix: meant === undefined ? "molt-runner --help lists the verbs" : undefined,
  });
}

async function printText(error: RunnerError): Promise<void> {
  const { colorsFor } = await import("./colors.ts");
  const { visible } = await import("./telemetry/views/lines.ts");
  const { red } = colorsFor(process.stderr);
  process.stderr.write(`${red("error")} ${withoutSecrets(visible(error.format()))}\n`);
}

function printJson(error: RunnerError): void {
  const { message, position, fix, exitCode } = error;
  const diagnostics = "diagnostics" in error ? error.diagnostics : undefined;
  const said = { error: { message, position, fix, exitCode, diagnostics } };
  process.stdout.write(`${withoutSecrets(JSON.stringify(said))}\n`);
}

// Whoever read the output may leave (`| head`); a run goes on, its log is elsewhere.
for (const stream of [process.stdout, process.stderr]) stream.on("error", () => {});
const code = await main(process.argv.slice(2));
// What was written is out before the process ends; handles that a verb left open do not hold it.
process.stdout.write("", () => process.exit(code));

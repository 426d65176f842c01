import { readFileSync } from "node:fs";
import { Command, CommanderError, InvalidArgumentError, Option } from "commander";
import type { VerbOptions } from "./commands/options.ts";
import type { ServeOptions } from "./commands/serve.ts";
import { ExitCode, messageOf, RunnerError, usageError } from "./errors.ts";

let exitCode: number = ExitCode.done;

/** Each verb loads its own module, so that starting costs what the verb needs. */
function createProgram(): Command {
  const program = new Command("molt-runner")
    .description("Trains language-model agents with reinforcement learning.")
    .version(version(), "-v, --version")
    .configureHelp({ subcommandTerm: (command) => `${command.name()} ${command.usage()}` })
    .exitOverride()
    .configureOutput({ writeErr: () => {} });
  addInit(program);
  addCheck(program);
  addImport(program);
  addRecipeVerbs(program);
  addRunVerbs(program);
  addMachineVerbs(program);
  addContext(program);
  addProcessVerbs(program);
  return program;
}

function addInit(program: Command): void {
  program
    .command("init <folder>")
    .description("write a new agent with its recipe, test and data; overwrites nothing")
    .option("--json", "report in JSON")
    .action(async (folder: string, { json = false }: { json?: boolean }) => {
      const { initCommand } = await import("./commands/init.ts");
      const templates = new URL("../templates/agent/", import.meta.url);
      exitCode = initCommand(folder, { json }, { templates, version: version() });
    });
}

function addCheck(program: Command): void {
  const formats = ["text", "json", "sarif", "github"] as const;
  wordsVerb(program, "check <recipe>…", "validate recipes and every file they name; starts nothing")
    .addOption(new Option("--format <format>", "of the report").choices(formats).default("text"))
    .option("--explain <key>", "say one key's value, where it comes from, and what is known of it")
    .action(
      async (words: string[], options: { json?: boolean; format: (typeof formats)[number]; explain?: string }) => {
        const { targets, flags } = await readWords("check <recipe>", words);
        const { checkCommand, explainCommand } = await import("./commands/check.ts");
        const settings = { format: options.json ? "json" : options.format, flags, version: version() } as const;
        if (options.explain === undefined) exitCode = await checkCommand(targets, settings);
        else exitCode = explainCommand(targets, options.explain, settings);
      },
    );
}

function addImport(program: Command): void {
  program
    .command("import <script>")
    .description("write the recipe of a shell script that calls the Python original; executes nothing")
    .option("-o, --output <recipe>", "where to (default: the script's name, with .yaml, in this folder)")
    .option("--json", "report in JSON")
    .action(async (script: string, { output, json = false }: { output?: string; json?: boolean }) => {
      const { importCommand } = await import("./commands/import.ts");
      exitCode = importCommand(script, { output, json });
    });
}

/** Verbs that take a recipe and its keys as flags. */
function addRecipeVerbs(program: Command): void {
  recipeVerb(program, "plan", "say what a recipe needs and how long a step takes", async (recipe, options) =>
    (await import("./commands/plan.ts")).planCommand(recipe, options),
  );
  recipeVerb(program, "run", "train by reinforcement learning", async (recipe, options) =>
    (await import("./commands/run.ts")).runCommand(recipe, options),
  );
  recipeVerb(program, "sft", "train on the replies of a dataset", async (recipe, options) =>
    (await import("./commands/sft.ts")).sftCommand(recipe, options),
  );
  recipeVerb(program, "eval", "evaluate a recipe's model on its held-out rows", async (recipe, options) =>
    (await import("./commands/eval.ts")).evalCommand(recipe, options),
  );
}

function addRunVerbs(program: Command): void {
  flagVerb(program, "resume <run-directory>", "go on with an interrupted run", async (directory, options) =>
    (await import("./commands/resume.ts")).resumeCommand(directory, options),
  );
  program
    .command("export <run-directory>")
    .description("write a run's newest checkpoint as a Hugging Face folder")
    .option("-o, --output <folder>", "where to (default: export/ in the run directory)")
    .option("--json", "report in JSON")
    .action(async (directory: string, { output, json = false }: { output?: string; json?: boolean }) => {
      const { exportCommand } = await import("./commands/export.ts");
      exitCode = await exportCommand(directory, { output, json });
    });
}

function addMachineVerbs(program: Command): void {
  program
    .command("setup")
    .description("install libtorch and build the native addon")
    .option("--tests", "also what the tests need")
    .option("--no-native", "only the JavaScript part")
    .option("--remove", "take away what an earlier set-up put in the user's cache")
    .action(
      async ({ tests = false, native, remove = false }: { tests?: boolean; native: boolean; remove?: boolean }) => {
        const { setupCommand } = await import("./commands/setup.ts");
        exitCode = await setupCommand({ tests, native, remove });
      },
    );
  program
    .command("doctor")
    .description("say which tools, caches and parts are there")
    .option("--json", "report in JSON")
    .action(async ({ json = false }: { json?: boolean }) => {
      const { doctorCommand } = await import("./commands/doctor.ts");
      exitCode = await doctorCommand({ json });
    });
}

function addContext(program: Command): void {
  const source = new Option("--budget <tokens>", "of source to print")
    .argParser(integer)
    .default(20_000)
    .conflicts("map");
  program
    .command("context")
    .description("print the code of this folder and of the runner, for people and assistants; executes none of it")
    .option("--map", "rooms and files in a line each, with what they export and who imports whom", false)
    .option("--room <name...>", "only these: algorithms, engines/embedded", [])
    .addOption(source)
    .option("--json", "report in JSON", false)
    .action(async ({ room, ...options }: { map: boolean; room: string[]; budget: number; json: boolean }) => {
      const { contextCommand } = await import("./commands/context.ts");
      exitCode = contextCommand({ ...options, rooms: room });
    });
}

/** Verbs that a run starts as processes of its own; `serve` is for people too. */
function addProcessVerbs(program: Command): void {
  program
    .command("lsp")
    .description("the language server, for editors; speaks over stdio")
    .option("--stdio", "the only transport, for clients that name it")
    .action(async () => (await import("./commands/lsp.ts")).lspCommand());
  program
    .command("serve")
    .description("serve a model with the embedded engine (vLLM's protocol)")
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
    .option("--api-key <key>", "asked of every request but /health (environment: MOLT_API_KEY)")
    .action(async (options: ServeOptions) => {
      const { serveCommand } = await import("./commands/serve.ts");
      await serveCommand(options, version());
    });
  program
    .command("rank", { hidden: true })
    .requiredOption("--controller <url>")
    .requiredOption("--rank <number>", "", integer)
    .action(async (options: { controller: string; rank: number }) => {
      const { rankCommand } = await import("./trainer/rank.ts");
      await rankCommand(options);
    });
}

function integer(text: string): number {
  if (!/^\d+$/.test(text)) throw new InvalidArgumentError("it must be an integer of at least 0.");
  return Number(text);
}

type Verb = (target: string, options: VerbOptions) => Promise<number>;

function recipeVerb(program: Command, name: string, description: string, verb: Verb): void {
  flagVerb(program, `${name} <recipe>`, description, verb);
}

function flagVerb(program: Command, usage: string, description: string, verb: Verb): void {
  const [name, target] = usage.split(" ");
  wordsVerb(program, usage, description).action(async (words: string[], { json = false }: { json?: boolean }) => {
    const { targets, flags } = await readWords(usage, words);
    if (targets.length !== 1) throw usageError(`${name} takes one ${target}: ${targets.join(" ")} are given`);
    exitCode = await verb(targets[0]!, { json, flags });
  });
}

/** The recipe's keys are flags that commander does not know: all words are taken as they come. */
function wordsVerb(program: Command, usage: string, description: string): Command {
  const [name, target] = usage.split(" ");
  return program
    .command(name!)
    .description(description)
    .usage(`${target} [--section.key value …]`)
    .argument("[words...]")
    .option("--json", "report in JSON")
    .addHelpText("after", "\nEvery key of a recipe is a flag: --actor.adam.lr 1e-3, --rollout.batch_size=64.")
    .allowUnknownOption();
}

async function readWords(usage: string, words: string[]) {
  const [name, target] = usage.split(" ");
  const { splitArguments } = await import("./recipe/flags.ts");
  const { positionals, flags } = splitArguments(words);
  if (positionals.length === 0) throw usageError(`${name} needs a ${target}: none is given`);
  return { targets: positionals, flags };
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
  const { red } = colorsFor(process.stderr);
  process.stderr.write(`${red("error")} ${error.format()}\n`);
}

function printJson(error: RunnerError): void {
  const { message, position, fix, exitCode } = error;
  const diagnostics = "diagnostics" in error ? error.diagnostics : undefined;
  process.stdout.write(`${JSON.stringify({ error: { message, position, fix, exitCode, diagnostics } })}\n`);
}

// Whoever read the output may leave (`| head`); a run goes on, its log is elsewhere.
for (const stream of [process.stdout, process.stderr]) stream.on("error", () => {});
const code = await main(process.argv.slice(2));
// What was written is out before the process ends; handles that a verb left open do not hold it.
process.stdout.write("", () => process.exit(code));

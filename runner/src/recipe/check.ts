import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { needsCritic } from "../algorithms/advantages/registry.ts";
import { type DatasetOptions, readDataset } from "../data/dataset.ts";
import { encodeDemonstrations } from "../data/demonstration.ts";
import { type ModelFolder, readModelFolder } from "../data/model-folder.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { ExitCode, fileError, RunnerError } from "../errors.ts";
import { checkUserFile } from "./agent-file.ts";
import { type Arithmetic, arithmetic } from "./arithmetic.ts";
import { type Diagnostic, displayPath, fileStart, RecipeError } from "./diagnostic.ts";
import { findExporter } from "./exporter.ts";
import type { Verb } from "./guardrails/index.ts";
import { disk, type EditedRecipe, loadRecipe } from "./load.ts";
import { planRecipe, readPolicyShape } from "./planner/index.ts";
import { checkPromptLengths } from "./prompt-lengths.ts";

export interface CheckOptions {
  flags?: Record<string, string>;
  /** Defaults to what the recipe looks made for. */
  verb?: Verb;
  /** `check` accepts a model folder that another recipe will make; `launch` wants it there. */
  mode: "check" | "launch";
}

export interface CheckedRecipe extends Omit<EditedRecipe, "diagnostics" | "place"> {
  /** Warnings and information: an error is thrown. */
  problems: Diagnostic[];
  arithmetic: Arithmetic;
}

/**
 * Loads a recipe, asks the guardrails and reads every file that it names, before anything starts. Executes nothing of
 * the workspace. Throws one `RecipeError` that lists all that is wrong: with the recipe, or if it is right, its files.
 */
export async function checkRecipe(path: string, { flags, verb: asked, mode }: CheckOptions): Promise<CheckedRecipe> {
  const loaded = loadRecipe(path, { flags, verb: asked, launch: mode === "launch" });
  const { recipe, provenance, diagnostics, verb } = loaded;
  const files = new FileChecks({ ...loaded, path, mode });
  const numRows = await files.run();
  const problems = [...diagnostics, ...planProblems(path, loaded), ...files.problems];
  if (problems.some(({ severity }) => severity === "error")) throw new RecipeError(problems);
  return { recipe, provenance, verb, problems, arithmetic: arithmetic(recipe, verb, numRows) };
}

/** Shapes that do not divide, memory that is not there. Nothing where the model cannot be read: its check says why. */
function planProblems(path: string, { recipe, verb, place }: EditedRecipe): Diagnostic[] {
  try {
    const model = readPolicyShape(recipe, path, disk.readFile);
    return planRecipe(recipe, model, { rows: null, verb }).findings.map(place);
  } catch (error) {
    if (!(error instanceof RunnerError)) throw error;
    return [];
  }
}

const agentExport = "`export default class extends Env` or `extends ChatAgent` (both come from molt-runner)";

/** Each check is asked, whatever the others found. */
class FileChecks {
  readonly problems: Diagnostic[] = [];
  private readonly loaded: EditedRecipe & { path: string; mode: CheckOptions["mode"] };
  /** The policy's, where its folder is right. */
  private tokenizer: Tokenizer | undefined;

  constructor(loaded: FileChecks["loaded"]) {
    this.loaded = loaded;
  }

  /** Number of training rows, null where they could not be read or the verb needs none. */
  async run(): Promise<number | null> {
    const { verb, recipe } = this.loaded;
    const { actor, ref, critic, algo, train } = recipe;
    await this.checkModel("actor.model_name_or_path", actor.model_name_or_path, actor.init === "weights", true);
    const { estimator } = algo.advantage;
    const others = [
      ["ref.model_name_or_path", algo.kl.init_coef > 0, ref.model_name_or_path],
      ["critic.model_name_or_path", needsCritic(estimator), critic.model_name_or_path],
    ] as const;
    for (const [key, isRead, folder] of others) {
      if (verb === "run" && isRead && folder !== null) await this.checkModel(key, folder, true, false);
    }
    const isRun = verb === "run";
    const files = [
      ["train.agent_path", verb !== "sft" && train.agent_path, agentExport],
      ["algo.advantage.estimator", isRun && estimator, "export default a function"],
      ["actor.loss_mode", isRun && actor.loss_mode, "export default a function"],
    ] as const;
    for (const [key, path, exported] of files) {
      // A name of a registry is no path.
      if (path && isAbsolute(path)) await this.attempt(key, () => checkUserFile(displayPath(path), key, exported));
    }
    for (const key of ["agent_command", "grader_command"] as const) {
      // The paths among a command's words are resolved, and so absolute.
      const missing = train[key]?.find((word) => isAbsolute(word) && !existsSync(word));
      if (missing) this.report("error", `train.${key}`, `train.${key}: ${displayPath(missing)} does not exist`);
    }
    return this.checkData();
  }

  private async checkModel(key: string, folder: string, weights: boolean, withTokenizer: boolean): Promise<void> {
    const exporter = existsSync(folder) ? undefined : findExporter(folder, this.loaded.path);
    if (exporter !== undefined) {
      const command = `npx molt-runner ${exporter.verb} ${displayPath(exporter.file)}`;
      const message = `${key} ${displayPath(folder)} is not there yet\n  fix: make it with: ${command}`;
      this.report(this.loaded.mode === "check" ? "info" : "error", key, message);
      return;
    }
    const wanted = { weights: weights ? "required" : "none" } as const;
    const model = await this.attempt(key, () => readModelFolder(displayPath(folder), wanted));
    if (!model) return;
    this.checkContext(model);
    if (withTokenizer) this.tokenizer = await this.attempt(key, () => this.checkTokenizer(model));
    const [has, wants] = [model.decoder.config.vocabSize, this.tokenizer?.vocabSize ?? 0];
    const sizes = `${key} knows ${has} tokens, the policy's tokenizer ${wants}`;
    const fix = "fix: take a model with the policy's tokenizer";
    if (has < wants) this.report("error", key, `${sizes}\n  ${fix}`);
    else if (!withTokenizer) await this.attempt(key, () => this.checkSameTokens(key, model.path, fix));
  }

  /** A folder without a tokenizer is taken at its word; but not a teacher, whose every id must mean the policy's. */
  private async checkSameTokens(key: string, folder: string, fix: string): Promise<void> {
    const isTeacher = this.loaded.recipe.algo.advantage.estimator === "on_policy_distill";
    if (!this.tokenizer || (!isTeacher && !existsSync(join(folder, "tokenizer.json")))) return;
    const other = (await Tokenizer.load(folder)).vocabulary;
    const own = this.tokenizer.vocabulary;
    const differ = [...new Set([...own.keys(), ...other.keys()])].filter(
      (token) => own.get(token) !== other.get(token),
    );
    if (differ.length === 0) return;
    const place = (token: string) => own.get(token) ?? own.size;
    const [token] = differ.sort((one, another) => place(one) - place(another));
    const ids = [other, own].map((vocabulary) => vocabulary.get(token!) ?? "none");
    const example = `${JSON.stringify(token)} is ${ids[0]} there and ${ids[1]} here`;
    const count = `${differ.length} tokens have other ids than in the policy's tokenizer, such as ${example}`;
    this.report("error", key, `${key}: ${count}\n  ${fix}`);
  }

  private checkContext({ configJson, path }: ModelFolder): void {
    const maxLen = this.loaded.recipe.data.max_len;
    const context = configJson.max_position_embeddings;
    if (typeof context !== "number" || maxLen <= context) return;
    const message = `data.max_len is ${maxLen}, the context of ${path} is ${context} tokens\n  fix: lower data.max_len`;
    this.report("error", "data.max_len", message);
  }

  private async checkTokenizer({ path, decoder, eosTokenIds }: ModelFolder): Promise<Tokenizer> {
    const template = this.loaded.recipe.data.chat_template;
    const chatTemplate = template === null ? null : displayPath(template);
    const tokenizer = await Tokenizer.load(path, { chatTemplate, eosTokenIds });
    if (tokenizer.vocabSize <= decoder.config.vocabSize) return tokenizer;
    const sizes = `${tokenizer.vocabSize} tokens, the model's config.json only ${decoder.config.vocabSize}`;
    const fix = "take config.json and the tokenizer from the same model";
    throw fileError(path, `the tokenizer has ${sizes}`, fix);
  }

  private async checkData(): Promise<number | null> {
    const { verb, recipe } = this.loaded;
    const { data, eval: evaluation, rollout } = recipe;
    const replies = verb === "sft" ? { outputKey: data.output_key } : { labelKey: data.label_key };
    const columns = { inputKey: data.input_key, ...replies };
    if (evaluation.dataset !== null) await this.readRows("eval.dataset", evaluation.dataset, columns);
    if (verb === "eval") return null;
    const options = { ...columns, maxSamples: data.max_samples };
    const numRows = await this.readRows("data.prompt_dataset", data.prompt_dataset!, options);
    if (verb === "run" && numRows !== null && numRows < rollout.batch_size) {
      const wanted = `the ${rollout.batch_size} of rollout.batch_size`;
      const message = `data.prompt_dataset has ${numRows} rows, fewer than ${wanted}`;
      this.report("warning", "data.prompt_dataset", message);
    }
    return numRows;
  }

  /** The number of rows, null where they cannot be read. */
  private async readRows(key: string, paths: string | string[], options: DatasetOptions): Promise<number | null> {
    const { tokenizer } = this;
    const { recipe, verb } = this.loaded;
    let numRows: number | null = 0;
    for (const file of [paths].flat().map(displayPath)) {
      const dataset = await this.attempt(key, () => readDataset(file, { ...options, option: key }));
      numRows = dataset && numRows !== null ? numRows + dataset.rows.length : null;
      if (!dataset || !tokenizer) continue;
      const { rows } = dataset;
      const place = { maxLen: recipe.data.max_len, file, option: key };
      await this.attempt(key, async () => {
        if (verb !== "sft") return checkPromptLengths(tokenizer, rows, place);
        const { dropped } = await encodeDemonstrations(tokenizer, rows, recipe, place);
        if (numRows !== null) numRows -= dropped;
      });
    }
    return numRows;
  }

  /** What a check that fails says becomes a problem at the key that led there; anything but a bad file is a bug. */
  private async attempt<T>(key: string, check: () => T | Promise<T>): Promise<T | undefined> {
    try {
      return await check();
    } catch (error) {
      if (!(error instanceof RunnerError) || error.exitCode !== ExitCode.usage) throw error;
      const { advice, position } = error;
      // What is not there cannot be opened: the recipe's line is shown.
      const isMissing = position !== undefined && !existsSync(position.file);
      if (isMissing) this.report("error", key, `${key} ${position.file}: ${advice.replace(`${key}: `, "")}`);
      else this.report("error", key, advice, position);
      return undefined;
    }
  }

  private report(severity: Diagnostic["severity"], key: string, message: string, where?: Diagnostic["where"]): void {
    const place = this.loaded.provenance.get(key)?.place ?? { file: this.loaded.path, range: fileStart };
    this.problems.push({ severity, code: "file", message, ...place, where });
  }
}

import { fileError } from "../../errors.ts";
import type { Verb } from "../guardrails/index.ts";
import { nestedYaml } from "../resolved-yaml.ts";
import { recipeKeys } from "../schema.ts";
import { checkValue, hasReference, parseText } from "../values.ts";
import { asInRl, defaults, reasons, renamed } from "./original.ts";
import { shellCommands, type Word } from "./shell.ts";

/** Flags of the original whose values nobody should see. */
const secret = /(wandb\.key|token|secret|password)$/;

/** A flag of the script that the recipe says nothing of. */
export interface Left {
  /** Of the script, from 1; null for a default of the original. */
  line: number | null;
  flag: string;
  value: string;
  why: string;
}

/** A flag as the original would read it. */
interface Flag {
  flag: string;
  words: Word[];
  line: number | null;
}

/** The recipe of a shell script that calls the Python original with its dotted flags; `file` is for people. */
export function importScript(script: string, file: string) {
  const calls = commands(script).flatMap((words) => {
    const at = words.findIndex(({ text }) => /(^|[./])train_(sft|rl)\w*(\.py)?$/.test(text));
    return at < 0 ? [] : [{ call: words[at]!, flags: readFlags(words.slice(at + 1)) }];
  });
  const [first, ...others] = calls;
  if (first === undefined) {
    const fix = "import reads scripts with a line like: python3 -m molt.cli.train_rl_ray --rollout.batch_size …";
    throw fileError(file, "this script never calls the Python original", fix);
  }
  const verb: Verb = first.call.text.includes("train_sft") ? "sft" : "run";
  const importer = new Importer();
  const given = verb === "sft" ? first.flags.map((it) => ({ ...it, flag: asInRl(it.flag) })) : first.flags;
  for (const [flag, text] of Object.entries(defaults[verb])) {
    if (!given.some((it) => it.flag === flag))
      importer.take({ flag, words: [{ text, line: 0, unknown: [] }], line: null });
  }
  for (const flag of given) importer.take(flag);
  if (verb === "run") importer.divideBatch();
  importer.lowerCeiling();
  const more = others.map(({ call: { line, text } }) => {
    return { line, flag: text, value: "", why: "a recipe is one run: import a script of its own" };
  });
  const yaml = `# molt-runner recipe, imported from ${file}\n${importer.yaml()}`;
  return { verb, yaml, left: [...importer.left, ...more] };
}

/** Those of `srun bash -c "…"` included. */
function commands(script: string): Word[][] {
  return shellCommands(script).flatMap((words) => {
    const quoted = words.filter(({ text }) => /\btrain_(sft|rl)\w*\s/.test(text));
    const inner = quoted.flatMap(({ text, line }) =>
      shellCommands(text).map((command) => command.map((word) => ({ ...word, line: word.line + line - 1 }))),
    );
    return [words, ...inner];
  });
}

function readFlags(words: Word[]): Flag[] {
  const flags: Flag[] = [];
  for (const word of words) {
    const [, flag, equals, value] = /^--([A-Za-z_][\w.-]*)(=?)(.*)$/s.exec(word.text) ?? [];
    if (flag !== undefined) flags.push({ flag, words: equals ? [{ ...word, text: value! }] : [], line: word.line });
    else flags.at(-1)?.words.push(word);
  }
  return flags;
}

class Importer {
  readonly left: Left[] = [];
  private readonly values = new Map<string, { value: unknown; source: string }>();

  take({ flag, words, line }: Flag): void {
    const value = words.map(({ text }) => text).join(",");
    const shown = secret.test(flag) ? "…" : value;
    const leave = (why: string) => this.left.push({ line, flag: `--${flag}`, value: shown, why });
    const [unknown] = words.flatMap((word) => word.unknown);
    if (unknown !== undefined) return void leave(`import executes nothing, and so does not know ${unknown}`);
    const [name, values] = renamed[flag] ?? [flag];
    const key = recipeKeys.get(name);
    const why = reasons.find(([flags]) => flags.test(flag))?.[1] ?? "no key corresponds to it";
    if (!key || name === "train.agent_path") return void leave(why);
    const typed = words.length === 0 ? "true" : value;
    const text = values?.[typed] ?? typed;
    const source = line === null ? "the original's default" : `line ${line}`;
    if (hasReference(text)) return void this.values.set(name, { value: text, source });
    const checked = checkValue(key, parseText(key, text));
    if ("problem" in checked) leave(checked.problem);
    else this.values.set(name, { value: checked.value, source });
  }

  /** `train.batch_size` of RL counts the rows of an optimizer step. */
  divideBatch(): void {
    const step = this.values.get("train.batch_size");
    this.values.delete("train.batch_size");
    if (step === undefined || this.values.has("train.updates_per_batch")) return;
    const numberOf = (key: string) => Number(this.values.get(key)?.value);
    const rows = numberOf("rollout.batch_size") * numberOf("rollout.n_samples_per_prompt");
    const updates = rows / Number(step.value);
    if (Number.isInteger(updates)) {
      this.values.set("train.updates_per_batch", { value: updates, source: step.source });
      return;
    }
    const sum = Number.isNaN(updates) ? "the rollouts of a batch" : `${rows} rollouts`;
    const why = `${sum} do not divide into steps of ${step.value} rows: set train.updates_per_batch`;
    this.left.push({ line: null, flag: "--train.batch_size", value: String(step.value), why });
  }

  /** CISPO's upper clip is the ceiling itself there, and here what it is above 1. */
  lowerCeiling(): void {
    const key = "actor.eps_clip_low_high";
    const clip = this.values.get(key);
    if (this.values.get("actor.loss_mode")?.value !== "cispo" || !Array.isArray(clip?.value)) return;
    const [low, ceiling] = clip.value as [number, number];
    this.values.set(key, { ...clip, value: [low, Number((ceiling - 1).toPrecision(12))] });
  }

  yaml(): string {
    const given = [...recipeKeys.keys()].filter((key) => this.values.has(key));
    return nestedYaml(given.map((key) => ({ key, ...this.values.get(key)! })));
  }
}

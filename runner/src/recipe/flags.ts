import { fileError, usageError } from "../errors.ts";
import { recipeKeys } from "./schema.ts";
import { best, editDistance, nearest, splitKey } from "./suggest.ts";

/** Flags are recipe keys: `--actor.adam.lr 1e-3`, `--algo.advantage.estimator=rloo`, `--actor.adam.betas 0.9,0.95`. */
export function splitArguments(words: string[]): { positionals: string[]; flags: Record<string, string> } {
  const positionals: string[] = [];
  const flags: Record<string, string> = {};
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    if (!word.startsWith("-") || word === "-") {
      positionals.push(word);
      continue;
    }
    const equals = word.indexOf("=");
    const flag = equals < 0 ? word : word.slice(0, equals);
    const key = knownKey(flag);
    if (key in flags) throw fileError(flag, "is given twice");
    if (equals >= 0) flags[key] = word.slice(equals + 1);
    else if (takesNext(key, words[i + 1])) flags[key] = words[++i]!;
    else if (isBoolean(key)) flags[key] = "true";
    else throw fileError(flag, `needs a value: ${recipeKeys.get(key)!.type}`);
  }
  return { positionals, flags };
}

function knownKey(flag: string): string {
  const key = flag.replace(/^--?/, "");
  if (flag.startsWith("--") && recipeKeys.has(key)) return key;
  const meant = nearestKey(key);
  throw usageError(`unknown flag '${flag}'${meant ? `: did you mean '--${meant}'?` : ""}`, {
    fix: meant ? undefined : "flags are the recipe's keys, such as --run.steps 100",
  });
}

/** By the whole dotted name, or by its last part alone, which may be farther off below the section that was named. */
export function nearestKey(name: string): string | undefined {
  const whole = nearest(name, [...recipeKeys.keys(), "json", "help"]);
  if (whole !== undefined) return whole;
  const { parent, leaf } = splitKey(name);
  return best(leaf, recipeKeys.keys(), (key) => {
    return editDistance(leaf, splitKey(key).leaf) + (parent !== "" && key.startsWith(`${parent}.`) ? 0 : 1);
  });
}

function takesNext(key: string, next: string | undefined): boolean {
  if (next === undefined || next.startsWith("--")) return false;
  return !isBoolean(key) || next === "true" || next === "false";
}

function isBoolean(key: string): boolean {
  return recipeKeys.get(key)!.values.join() === "true,false";
}

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { isScalar, parseDocument } from "yaml";
import { ExitCode, messageOf, usageError } from "../errors.ts";
import { displayPath } from "../recipe/diagnostic.ts";

const kinds = {
  estimator: { key: "algo.advantage.estimator", room: "advantages", types: "./estimator.ts" },
  loss: { key: "actor.loss_mode", room: "losses", types: "./policy-loss.ts" },
};

/**
 * Writes an estimator or a loss with its test, and the line that names it: in a checkout of the runner its registry's,
 * elsewhere that of recipe.yaml. Overwrites no file, and writes none where one of these cannot be.
 */
export function scaffoldCommand(kind: string, name: string, templates: URL): number {
  if (!Object.hasOwn(kinds, kind)) throw usageError(`init knows agent, estimator and loss, not '${kind}'`);
  if (!/^[a-z][a-z0-9_]*$/.test(name)) throw usageError(`'${name}' must be of small letters, digits and _`);
  const { key, room, types } = kinds[kind as keyof typeof kinds];
  const inRunner = resolve("runner/src/algorithms", room);
  const isCheckout = existsSync(inRunner);
  const file = name.replaceAll("_", "-");
  const camel = name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
  const template = (ending: string) =>
    readFileSync(new URL(kind + ending, templates), "utf8")
      .replaceAll("FUNCTION", camel)
      .replaceAll("FILE", file)
      .replaceAll("NAME", name);
  const [code, test] = [template(".ts"), template(".test.mjs")];
  const files = isCheckout
    ? {
        [join(inRunner, `${file}.ts`)]: code
          .replace("molt-runner", types)
          .replace("const", "export const")
          .replace(/\nexport default .*\n/, ""),
        [join(inRunner, `${file}.test.ts`)]: test
          .replace(/import { loadFunction(, )?/, `import { ${camel} } from "./${file}.ts";\nimport { `)
          .replace(/import { {2}}.*\n/, "")
          .replace(/const \w+ = await loadFunction.*\n\n/, "")
          .replace("node:test", "vitest")
          .replace("molt-runner/testing", "../../testing.ts"),
      }
    : { [resolve(`${file}.ts`)]: code, [resolve(`${file}.test.mjs`)]: test };
  for (const path of Object.keys(files)) {
    if (existsSync(path)) throw usageError(`${displayPath(path)} is there already`, { fix: "take another name" });
  }
  const place = isCheckout ? join(inRunner, "registry.ts") : resolve("recipe.yaml");
  const named = isCheckout ? withEntry(place, camel, name, file) : withKey(place, key, `./${file}.ts`);
  for (const [path, text] of Object.entries({ ...files, [place]: named })) {
    writeFileSync(path, text, { flag: path === place ? "w" : "wx" });
    console.log(displayPath(path));
  }
  const next = "next: npx biome check --write runner/src/algorithms; npm run schema";
  console.log(isCheckout ? next : `${key}: ./${file}.ts`);
  return ExitCode.done;
}

function withEntry(registry: string, camel: string, name: string, file: string): string {
  const text = readFileSync(registry, "utf8").replace(/,? ?\n?};\n/, `, ${name}: ${camel} };\n`);
  return `import { ${camel} } from "./${file}.ts";\n${text}`;
}

function withKey(recipe: string, key: string, value: string): string {
  if (!existsSync(recipe)) throw usageError("no recipe.yaml is here to name it in", { fix: `set ${key} to ${value}` });
  const text = readFileSync(recipe, "utf8");
  const document = parseDocument(text);
  const before = document.getIn(key.split("."), true);
  const [start, end] = (isScalar(before) && before.range) || [0, 0];
  // One line changes, and nothing else of how the file is written. (A key without a value has no place to write at.)
  if (end > start) return text.slice(0, start) + value + text.slice(end);
  try {
    document.setIn(key.split("."), value);
    return document.toString();
  } catch (error) {
    throw usageError(`recipe.yaml has no place for ${key}: ${messageOf(error)}`, { position: { file: recipe } });
  }
}

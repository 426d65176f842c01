import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { packageFolder } from "../code/shipped.ts";
import { ExitCode, usageError } from "../errors.ts";
import { displayPath } from "../recipe/diagnostic.ts";

export interface InitSources {
  templates: URL;
  /** Of this package, which the new folder then asks for. */
  version: string;
}

/** Writes a folder with a recipe, an agent, its test and data. Overwrites nothing: names what is there already. */
export function initCommand(target: string, { json }: { json: boolean }, { templates, version }: InitSources): number {
  const folder = resolve(target);
  const files = templateFiles(fileURLToPath(templates));
  refuseExisting(folder, [...files.keys()]);
  for (const [path, content] of files) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    const text = path === "package.json" ? packageJson(content, folder, version) : content;
    writeFileSync(join(folder, path), text, { flag: "wx" });
  }
  const next = nextCommands(folder);
  if (json) console.log(JSON.stringify({ folder, files: [...files.keys()], next }));
  else console.log([`${displayPath(folder)}: ${[...files.keys()].join(", ")}\nnext:`, ...next].join("\n  "));
  return ExitCode.done;
}

/** Content by path, in the order in which a reader wants them: what lies in folders last. */
function templateFiles(templates: string): Map<string, string> {
  const paths = readdirSync(templates, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(templates, join(entry.parentPath, entry.name)).replaceAll("\\", "/"));
  const depth = (path: string) => path.split("/").length;
  paths.sort((a, b) => depth(a) - depth(b) || (a < b ? -1 : 1));
  // npm leaves a `.gitignore` out of packages.
  const target = (path: string) => (path === "gitignore" ? ".gitignore" : path);
  return new Map(paths.map((path) => [target(path), readFileSync(join(templates, path), "utf8")]));
}

function refuseExisting(folder: string, paths: string[]): void {
  const shown = displayPath(folder);
  const stat = (path: string) => statSync(path, { throwIfNoEntry: false });
  if (stat(folder)?.isFile()) throw usageError(`${shown} is a file`, { fix: "name a folder" });
  const existing = paths.filter((path) => stat(join(folder, path)));
  if (existing.length === 0) return;
  throw usageError(`${shown} has files of these names already, which init does not overwrite: ${existing.join(", ")}`, {
    fix: "name another folder, or move them away",
  });
}

function packageJson(template: string, folder: string, version: string): string {
  const name = basename(folder)
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, "-")
    .replace(/^[._-]+/, "");
  const content = JSON.parse(template);
  content.name = name || content.name;
  content.devDependencies["molt-runner"] = version;
  return `${JSON.stringify(content, null, 2)}\n`;
}

function nextCommands(folder: string): string[] {
  return [
    ...(folder === process.cwd() ? [] : [`cd ${displayPath(folder)}`]),
    // It may be installed above the folder too.
    ...(packageFolder(folder) ? [] : ["npm install"]),
    "npx molt-runner check recipe.yaml",
    "npm test",
    "npx molt-runner sft warmup.yaml",
    "npx molt-runner run recipe.yaml",
  ];
}

// The licences of the packages whose code a bundle holds: they ask to be passed on with it.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));

/** @param {import("esbuild").Metafile[]} metafiles @param {string} file */
export function writeNotices(metafiles, file) {
  const paths = metafiles.flatMap(({ inputs }) => Object.keys(inputs));
  const folders = new Set(paths.flatMap((path) => path.match(/node_modules\/(?:@[^/]+\/)?[^/]+/g)?.at(-1) ?? []));
  const notices = [...folders].sort().map((folder) => noticeOf(join(root, folder)));
  writeFileSync(file, `This folder's bundles hold code of these packages.\n\n${notices.join("\n")}`);
}

function noticeOf(folder) {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const texts = readdirSync(folder).filter((entry) => /^licen[cs]e/i.test(entry));
  const bodies = texts.map((entry) => readFileSync(join(folder, entry), "utf8").trim());
  return [`== ${name} ${version} (${license})`, ...bodies, ""].join("\n");
}

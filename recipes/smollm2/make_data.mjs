// Writes capitals.jsonl from the npm package countries-list (MIT, see LICENSE.countries-list): one question a country.
// Run: npm install --prefix runs/packages --no-save countries-list@3.4.1
//      node recipes/smollm2/make_data.mjs runs/packages/node_modules/countries-list
import { readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const wanted = "3.4.1";
const folder = resolve(process.argv[2] ?? "runs/packages/node_modules/countries-list");
const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));

const { version } = read("package.json");
if (version !== wanted) throw new Error(`${folder} is countries-list ${version}, not ${wanted}`);
// Territories of another country are left out, and whatever has no capital.
const rows = Object.values(read("countries.min.json")).flatMap(({ name, capital, partOf }) =>
  capital && !partOf ? [{ prompt: `What is the capital of ${name}?`, label: capital }] : [],
);
writeFileSync(new URL("capitals.jsonl", import.meta.url), rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
console.log(`${rows.length} countries`);

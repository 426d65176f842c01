import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { type McpServer, ResourceTemplate } from "@modelcontextprotocol/server";
import { codeMap } from "../code/index.ts";
import { usageError } from "../errors.ts";
import { filesBelow } from "../files.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { readDocument } from "../recipe/document.ts";
import { recipeJsonSchema } from "../recipe/schema.ts";
import { listRuns } from "../telemetry/find-run.ts";
import { censored, inside, isInside, runArgument } from "./guard.ts";
import { runStatus } from "./run-views.ts";
import { sources } from "./tools.ts";

/** By kind: what there is, and the text of one of these by its name, which a client may have made up. */
const kinds: Record<string, { list: () => string[]; read: (name: string) => string }> = {
  recipes: {
    list: () =>
      filesBelow(process.cwd(), /\.ya?ml$/, 4)
        .map(displayPath)
        .filter(hasSections),
    read: (path) => readFileSync(inside(path), "utf8"),
  },
  runs: {
    list: () => listRuns("runs").flatMap(({ id, path }) => (isInside(path) ? [id, `${id}/recipe.yaml`] : [])),
    read: (path) =>
      basename(path) === "recipe.yaml"
        ? readFileSync(join(runArgument(dirname(path)), "recipe.yaml"), "utf8")
        : JSON.stringify(runStatus(path)[0]),
  },
  reference: {
    list: () => ["schema.json", "code-map.json"],
    read: (name) => JSON.stringify(name === "schema.json" ? recipeJsonSchema() : codeMap(sources())),
  },
};

/** Each under `molt://<kind>/<name>`. */
export function registerResources(server: McpServer): void {
  for (const [kind, { list, read }] of Object.entries(kinds)) {
    const resources = () => list().map((name) => ({ uri: `molt://${kind}/${encodeURI(name)}`, name }));
    const template = new ResourceTemplate(`molt://${kind}/{+name}`, { list: () => ({ resources: resources() }) });
    server.registerResource(kind, template, {}, ({ href: uri }, variables) => {
      const name = decodeURIComponent(String(variables.name));
      if (!list().includes(name)) throw usageError(`there is no ${uri}`, { fix: "resources/list has those there are" });
      return { contents: [{ uri, text: censored(read(name)) }] };
    });
  }
}

function hasSections(path: string): boolean {
  return readDocument(readFileSync(path, "utf8"), path).sections.size > 0;
}

import { shorten } from "../../runner/src/lists.ts";
import { recipeKeys, recipeVersion } from "../../runner/src/recipe/schema.ts";
import { eventVersion } from "../../runner/src/telemetry/events.ts";
import { liveProtocol } from "../../runner/src/telemetry/live/server.ts";
import type { Formats, RunnerVersions } from "./locate.ts";

/** What this extension was built with. */
export const ownVersions = {
  formats: { recipe: recipeVersion, events: eventVersion, live: liveProtocol } satisfies Formats as Formats,
  keys: new Set(recipeKeys.keys()),
};

const meaning: Record<keyof Formats, Record<"older" | "newer", string>> = {
  recipe: {
    older: "some keys mean something else to it than the editor says",
    newer: "the editor explains some keys as they used to be",
  },
  events: { older: "some charts stay empty", newer: "its runs cannot be read here" },
  live: { older: "its runs are followed by their logs", newer: "its runs are followed by their logs" },
};

/** How a runner differs from what this extension was built with, a line each, then what to do; none: not at all. */
export function skewOf({ formats, keys }: RunnerVersions, own = ownVersions): string[] {
  const older: string[] = [];
  const newer: string[] = [];
  for (const [name, mine] of Object.entries(own.formats) as [keyof Formats, number][]) {
    const theirs = formats[name] ?? 0;
    const say = (age: "older" | "newer") =>
      `its ${name} version is ${age} (${theirs}, here ${mine}): ${meaning[name][age]}`;
    if (theirs < mine) older.push(say("older"));
    if (theirs > mine) newer.push(say("newer"));
  }
  const refused = keys ? [...own.keys].filter((key) => !keys.has(key)) : [];
  const unknown = [...(keys ?? [])].filter((key) => !own.keys.has(key));
  if (refused.length > 0) older.push(`it refuses ${shorten(refused, 3)}, which the editor takes`);
  if (unknown.length > 0) newer.push(`it takes ${shorten(unknown, 3)}, which the editor flags`);
  if (older.length > 0) older.push("update the runner: npm install --save-dev molt-runner@latest");
  if (newer.length > 0) newer.push("update the extension Molt Runner");
  return [...older, ...newer];
}

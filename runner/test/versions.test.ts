import { expect, test } from "vitest";
import { recipeVersion } from "../src/recipe/schema.ts";
import { eventVersion } from "../src/telemetry/events.ts";
import { liveProtocol } from "../src/telemetry/live/server.ts";
import { read } from "./tree.ts";

test("the package says the versions of its formats, for whoever reads it without starting it", () => {
  const versions = { recipe: recipeVersion, events: eventVersion, live: liveProtocol };
  expect(JSON.parse(read("runner/package.json")).molt).toEqual(versions);
});

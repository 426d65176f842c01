import { expect, it } from "vitest";
import { readEdited } from "../recipe/index.ts";
import { rankDeadlines } from "./parts.ts";

it("ranks have the recipe's deadlines, and at a weight sync no less than the sync", () => {
  const of = (sections: object) => rankDeadlines(readEdited(JSON.stringify(sections), "/r/a.yaml").recipe);
  expect(of({})).toEqual({ start: 600, request: 600 });
  const actor = { start_timeout: 3600, request_timeout: 900 };
  expect(of({ actor, engine: { sync_timeout: 300 } })).toEqual({ start: 3600, request: 900 });
  expect(of({ actor, engine: { sync_timeout: 1200 } })).toEqual({ start: 3600, request: 1200 });
});

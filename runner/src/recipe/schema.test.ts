import { expect, test } from "vitest";
import { recipeJsonSchema } from "./schema.ts";

test("recipes/schema.json is what the schema makes; `npm run schema` writes it", async () => {
  const made = recipeJsonSchema();
  expect(made.$schema).toBe("https://json-schema.org/draft/2020-12/schema");
  await expect(`${JSON.stringify(made, null, 2)}\n`).toMatchFileSnapshot("../../../recipes/schema.json");
});

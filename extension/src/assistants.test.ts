import { expect, it } from "vitest";
import { z } from "zod";
import { launchTools } from "../../runner/src/mcp/launch.ts";
import { readingTools } from "../../runner/src/mcp/tools.ts";
import { read } from "../../runner/test/tree.ts";

interface Declared {
  name: string;
  displayName: string;
  modelDescription: string;
  inputSchema: object;
  when?: string;
}

const { contributes, capabilities } = JSON.parse(read("extension/package.json"));
const declared = contributes.languageModelTools as Declared[];
const tools = { ...readingTools, ...launchTools };

it("package.json declares the server's tools, each with the inputs and the description that it has there", () => {
  expect(declared.map(({ name }) => name)).toEqual(Object.keys(tools).map((name) => `molt_${name}`));
  for (const { name, displayName, modelDescription, inputSchema, ...more } of declared) {
    const { description, input } = tools[name.replace("molt_", "")]!;
    expect(modelDescription).toBe(`Molt Runner: ${description}`);
    const { $schema: _, ...schema } = z.toJSONSchema(input, { io: "input" });
    expect(inputSchema, name).toEqual(schema);
    // What VS Code asks of a tool that a user may name in a prompt.
    expect(more).toMatchObject({ canBeReferencedInPrompt: true, toolReferenceName: name });
    expect(displayName.length).toBeGreaterThan(3);
  }
});

it("package.json offers them, and the server's definition, to trusted workspaces", () => {
  expect(declared.every(({ when }) => when === "isWorkspaceTrusted")).toBe(true);
  expect(contributes.mcpServerDefinitionProviders).toEqual([{ id: "molt.mcp", label: "Molt Runner" }]);
  expect(capabilities.untrustedWorkspaces.supported).toBe("limited");
});

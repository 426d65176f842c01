import { expect, test } from "vitest";
import { debugConfiguration } from "./debug-configuration.ts";

test("a script is the program; source maps are followed out of the workspace, and waited for", () => {
  const made = debugConfiguration(["node", "cli.js"], ["replay", "runs/a", "r/0"], "root");
  expect(made).toMatchObject({ program: "cli.js", args: ["replay", "runs/a", "r/0"], cwd: "root" });
  expect(made).toMatchObject({
    resolveSourceMapLocations: null,
    pauseForSourceMap: true,
    autoAttachChildProcesses: false,
  });
});

test("a command starts the program: what it starts is attached to", () => {
  const made = debugConfiguration(["npx", "molt-runner"], ["run", "a.yaml"], "root");
  expect(made).toMatchObject({ runtimeExecutable: "npx", runtimeArgs: ["molt-runner", "run", "a.yaml"] });
  expect(made).toMatchObject({ autoAttachChildProcesses: true });
});

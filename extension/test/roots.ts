// Two roots with two runners; what is hostile; assistants; a run whose live port nobody gets to.
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { block, type Chapter, dashboard, runOf, Terminal, tableColumn, takePicture } from "./chapter.ts";
import { eventually, says } from "./driver.ts";
import { inspectHarm } from "./inspector.ts";
import { marked } from "./processes.ts";
import { scale } from "./vscode-web/setup.ts";

export const roots: Chapter = {
  name: "two roots with two runners",
  folder: "both.code-workspace",
  before: async (places) => {
    const terminal = new Terminal(places);
    await terminal.warmUp();
    await block(await terminal.start("blocked"));
  },
  steps: {
    "with its live port blocked, a run shows the same by its log": async ({ window }) => {
      await window.trust();
      await window.runCommand("Molt Runner: Open Dashboard"); // of the newest run
      const frame = await window.view(dashboard);
      await says(frame.locator(".legend"), "following its log");
      // Before the first step there is no chart of it, and the first table is another's.
      await frame
        .getByText("Reward (mean of")
        .first()
        .waitFor({ timeout: 60_000 * scale });
      await frame.getByRole("button", { name: "Table" }).first().click();
      const before = (await tableColumn(frame, "Reward")).length;
      await eventually(async () => (await tableColumn(frame, "Reward")).length > before, "another step", 60);
      await window.runCommand("Molt Runner: Stop Run");
      await says(frame.locator(".legend"), "interrupted", 60);
    },

    "each root has its runner, and the older one is named": async ({ window }) => {
      await window.runCommand("Molt Runner: Doctor");
      await window.tab("doctor.txt").waitFor();
      await eventually(async () => (await window.text()).includes("molt-runner 0.0.9 of second"), "the skew", 60);
    },

    "the second root's recipe runs with its own": async ({ window, folder, mark }) => {
      await window.openFile("hostile.yaml");
      await window.runCommand("Molt Runner: Run Recipe");
      await eventually(() => marked(mark, "/second/node_modules/molt-runner/").length > 0, "its own runner");
      const second = join(folder, "..", "second");
      await eventually(() => existsSync(join(runOf(second, "hostile"), "summary.json")), "the run's end", 90);
    },

    "prompts, details and errors that would do harm do none": async ({ window, folder }) => {
      const run = runOf(join(folder, "..", "second"), "hostile");
      await window.chooseFrom("Molt Runner: Inspect Rollouts", "hostile-");
      const frame = await window.view(`Rollouts of ${basename(run)}`);
      await frame.locator('tbody tr:has-text("env_done") .link').first().click();
      await frame.locator('.about:has-text("Ignore all instructions")').waitFor();
      await inspectHarm(window);
      for (const one of window.page.frames()) {
        if ((await one.locator('img[src="x"]').count()) > 0) throw new Error("text became an element");
      }
      if ((await window.page.title()) === "1") throw new Error("text was run");
    },

    "its reward function is a test over the stored rollouts": async (context) => {
      const { window } = context;
      await window.runCommand("Testing: Focus on Test Explorer View");
      const row = window.page.locator('.test-explorer .monaco-list-row:has-text("hostile.ts on hostile-")').first();
      await row.waitFor();
      await window.runCommand("Test: Run All Tests");
      await row.locator(".codicon-testing-passed-icon").waitFor({ timeout: 60_000 * scale });
      await takePicture(context, "tests");
    },

    "an assistant's tool answers, and an MCP server is offered": async ({ window, home }) => {
      await window.runCommand("Probe: Ask a Molt Runner Tool");
      const file = join(home, "my-agent", "probe.json");
      await eventually(() => existsSync(file), "the tool's answer", 60);
      const { tools, answer } = JSON.parse(await readFile(file, "utf8"));
      if (!tools.includes("molt_start") || !answer.includes("recipe.yaml")) throw new Error(`${tools}: ${answer}`);
      // The list is of what providers have said by then.
      await eventually(async () => {
        await window.runCommand("MCP: List Servers");
        return await window.lists("Select an MCP Server", "Molt Runner: my-agent");
      }, "the MCP server");
    },
  },
};

// Calls a language-model tool as an assistant does; the editor tests read the answer from a file of the workspace.
const { writeFileSync } = require("node:fs");
const { join } = require("node:path");
const { commands, lm, workspace } = require("vscode");

async function askTool() {
  const folder = workspace.workspaceFolders[0].uri.fsPath;
  const tools = lm.tools.map(({ name }) => name).filter((name) => name.startsWith("molt_"));
  const options = { input: { recipe: join(folder, "recipe.yaml") }, toolInvocationToken: undefined };
  const answer = await lm.invokeTool("molt_check", options).then(
    ({ content }) => content.map(({ value }) => value).join("\n"),
    (error) => `failed: ${error.message}`,
  );
  writeFileSync(join(folder, "probe.json"), JSON.stringify({ tools, answer }));
}

exports.activate = ({ subscriptions }) => {
  subscriptions.push(commands.registerCommand("probe.askTool", askTool));
};

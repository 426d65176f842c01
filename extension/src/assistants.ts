import type { Client } from "@modelcontextprotocol/client";
import * as vscode from "vscode";
import { deadlineMs, withDeadline } from "../../runner/src/deadline.ts";
import { type Runner, runnerFor } from "./runner.ts";
import type { Services } from "./services.ts";

interface Declared {
  /** The server's name of it, after `molt_`. */
  name: string;
  displayName: string;
}

const startSeconds = 30;
const answerSeconds = 120;
/** What would act, in the user's words; the others only read. */
const acts: Record<string, (input: Record<string, unknown>) => string | null> = {
  scaffold: ({ kind, name }) => `Write the ${kind} ${name} into this workspace?`,
  run_tests: ({ file }) => `Execute ${file}?`,
  // Without a hash it only plans.
  start: ({ recipe, flags = {}, confirm }) =>
    confirm ? `Start a run of ${recipe} ${JSON.stringify(flags)}, as plan ${confirm} shows it?` : null,
  stop: ({ run, now }) => `Stop the run ${run}${now ? " at once" : ""}?`,
};

/** The language-model tools of package.json, and a server's definition for other assistants. */
export function registerAssistants({ context, log }: Services): vscode.Disposable[] {
  const [servers, changed] = [new Servers(), new vscode.EventEmitter<void>()];
  const declared = context.extension.packageJSON.contributes.languageModelTools as Declared[];
  const tools = declared.map((one) => vscode.lm.registerTool(one.name, toolOf(one, servers)));
  const provideMcpServerDefinitions = async () => {
    const folders = vscode.workspace.workspaceFolders ?? [];
    const found = folders.map(async ({ name, uri }) => {
      const runner = await runnerFor(uri).catch((error) => log.info(`no MCP server for ${name}: ${error.message}`));
      return runner ? [definitionOf(`Molt Runner: ${name}`, uri, runner)] : [];
    });
    return (await Promise.all(found)).flat();
  };
  const provider = { provideMcpServerDefinitions, onDidChangeMcpServerDefinitions: changed.event };
  return [
    ...[servers, changed, ...tools, vscode.lm.registerMcpServerDefinitionProvider("molt.mcp", provider)],
    vscode.workspace.onDidGrantWorkspaceTrust(() => changed.fire()),
    vscode.workspace.onDidChangeWorkspaceFolders(() => changed.fire()),
  ];
}

function toolOf({ name, displayName }: Declared, servers: Servers): vscode.LanguageModelTool<Record<string, unknown>> {
  const tool = name.replace("molt_", "");
  return {
    prepareInvocation: ({ input }) => {
      const question = acts[tool]?.(input);
      return {
        invocationMessage: displayName,
        confirmationMessages: question ? { title: displayName, message: question } : undefined,
      };
    },
    invoke: async ({ input }, token) => {
      const editor = vscode.window.activeTextEditor?.document.uri;
      const folder = (editor && vscode.workspace.getWorkspaceFolder(editor)) ?? vscode.workspace.workspaceFolders?.[0];
      if (!folder) throw new Error("no folder is open, in which recipes and runs would be looked for");
      return new vscode.LanguageModelToolResult([
        new vscode.LanguageModelTextPart(await servers.ask(folder.uri, tool, input, token)),
      ]);
    },
  };
}

/** It only reads: what acts is offered by the tools above, which ask first. */
function definitionOf(label: string, uri: vscode.Uri, { command: [program, ...words], version }: Runner) {
  const definition = new vscode.McpStdioServerDefinition(label, program!, [...words, "mcp"], {}, version ?? undefined);
  definition.cwd = uri;
  return definition;
}

/** `molt-runner mcp` of each folder that was asked for, from the first question until the extension ends. */
class Servers implements vscode.Disposable {
  private readonly clients = new Map<string, Promise<Client>>();

  /** Text of the answer; rejects with what the tool says is wrong. */
  async ask(
    folder: vscode.Uri,
    name: string,
    input: Record<string, unknown>,
    token: vscode.CancellationToken,
  ): Promise<string> {
    const runner = await runnerFor(folder);
    const key = JSON.stringify([runner.command, runner.cwd]);
    const connecting = this.clients.get(key) ?? this.connect(key, runner);
    this.clients.set(key, connecting);
    const client = await connecting;
    const abort = new AbortController();
    const watching = token.onCancellationRequested(() => abort.abort());
    const options = { signal: abort.signal, timeout: deadlineMs(answerSeconds) };
    const answer = await client.callTool({ name, arguments: input }, options).finally(() => watching.dispose());
    const text = answer.content.map((part) => (part.type === "text" ? part.text : "")).join("\n");
    if (answer.isError) throw new Error(text);
    return text;
  }

  dispose(): void {
    for (const connecting of this.clients.values()) connecting.then((client) => client.close()).catch(() => {});
  }

  private async connect(key: string, { command: [program, ...words], cwd, version }: Runner): Promise<Client> {
    const { Client, StdioClientTransport } = await import("./mcp-client.ts");
    const client = new Client({ name: "molt-runner-vscode", version: version ?? "unknown" });
    client.onclose = () => this.clients.delete(key);
    // A run that is started from here gets what one from a terminal gets.
    const env = process.env as Record<string, string>;
    const args = [...words, "mcp", "--allow-launch"];
    const transport = new StdioClientTransport({ command: program!, args, cwd, env, stderr: "ignore" });
    try {
      await withDeadline(client.connect(transport), startSeconds, "molt-runner mcp");
      return client;
    } catch (error) {
      this.clients.delete(key);
      await transport.close();
      throw error;
    }
  }
}

import { type Uri, window, workspace } from "vscode";
import { messageOf } from "../../runner/src/errors.ts";
import { notice, showText } from "./documents.ts";
import { readVersions } from "./locate.ts";
import { locate, runVerb } from "./runner.ts";
import type { Services } from "./services.ts";
import { skewOf } from "./versions.ts";

/** By root of the workspace, how its runner differs from this extension. */
export function skewLines(): string[] {
  return (workspace.workspaceFolders ?? []).flatMap(({ name, uri }) => {
    const folder = locate(uri)?.folder;
    const versions = folder ? readVersions(folder) : null;
    return versions ? skewOf(versions).map((line) => `molt-runner ${versions.version} of ${name}: ${line}`) : [];
  });
}

/** Once a session, and for whoever looks at the status bar. */
export function warnOfSkew({ server }: Services, lines: string[]): void {
  server.note(lines);
  if (lines.length > 0) window.showWarningMessage(notice(lines.join("; ")));
}

/** What serves each root of the workspace, how it differs from this extension, and what it says of its machine. */
export function doctor({ context, server }: Services) {
  return async () => {
    const { version } = context.extension.packageJSON as { version: string };
    const roots = await Promise.all((workspace.workspaceFolders ?? []).map(({ name, uri }) => rootText(name, uri)));
    const none = "no folder is open: nothing says which runner to use";
    const skew = skewLines();
    server.note(skew);
    const state = server.client ? "up" : "down: its log is in the output channel Molt Runner";
    const text = [`extension ${version}`, `server    ${state}`, ...skew.map((line) => `skew      ${line}`)];
    await showText("doctor.txt", [...text, ...(roots.length > 0 ? roots : [none])].join("\n"));
  };
}

async function rootText(name: string, uri: Uri): Promise<string> {
  const located = locate(uri);
  const title = `\n${name} (${uri.fsPath})`;
  if (!located)
    return `${title}\nmissing   molt-runner\n  fix: npm install --save-dev molt-runner, or set molt.runnerPath`;
  const command = `${title}\nrunner    ${located.command.join(" ")}`;
  if (!workspace.isTrusted) return `${command}\nnot asked: the workspace is not trusted`;
  const asked = runVerb(located, ["doctor"]);
  const said = await asked.then(({ stdout, stderr }) => stdout + stderr, messageOf);
  return `${command}\n${said.trim()}`;
}

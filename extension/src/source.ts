import { existsSync } from "node:fs";
import { dirname, isAbsolute, join } from "node:path";
import { Range, Uri, ViewColumn, window, workspace } from "vscode";

/** `molt.openSource`: opens `file:line`, as a run has it. Relative paths are the run's, or the workspace's. */
export function openSource() {
  return async (place: string, directory?: string): Promise<void> => {
    const [, file, line] = /^(.*?)(?::(\d+))?$/s.exec(place)!;
    const found = candidates(file!, directory).find(existsSync);
    if (!found) throw new Error(`${file} is not there any more: the run's agent was made of it`);
    const document = await workspace.openTextDocument(Uri.file(found));
    const at = Math.min(Number(line ?? 1), document.lineCount) - 1;
    const { range } = document.lineAt(Math.max(at, 0));
    // Beside the rollout that led here.
    const column = window.activeTextEditor?.viewColumn ?? ViewColumn.Beside;
    await window.showTextDocument(document, { viewColumn: column, selection: new Range(range.start, range.start) });
  };
}

/** A run's folder usually lies below the one that the run was started in. */
function candidates(file: string, directory: string | undefined): string[] {
  // Of a share in the network, which a run may name, Windows would ask that network.
  if (isAbsolute(file)) return /^[\\/]{2}/.test(file) ? [] : [file];
  const above: string[] = [];
  for (let folder = directory; folder !== undefined && dirname(folder) !== folder; folder = dirname(folder)) {
    above.push(folder);
  }
  return [...above, ...(workspace.workspaceFolders ?? []).map(({ uri }) => uri.fsPath)].map((root) => join(root, file));
}

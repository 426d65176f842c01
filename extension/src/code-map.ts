import { existsSync } from "node:fs";
import { join } from "node:path";
import { EventEmitter, ThemeIcon, TreeItem, TreeItemCollapsibleState, Uri, window, workspace } from "vscode";
import { type CodeMapResult, codeMapRequest } from "../../lsp/src/requests.ts";
import { ask } from "./client.ts";
import { installedRunner } from "./locate.ts";
import type { Services } from "./services.ts";

type Room = CodeMapResult["rooms"][number];
type MapNode = { room: Room; file?: Room["files"][number] };

/** The tree of rooms and files that the language server reads: the workspace's, and the runner's that it would load. */
export function showCodeMap({ server, context }: Services): void {
  const changed = new EventEmitter<void>();
  const tree = window.createTreeView<MapNode>("molt.codeMap", {
    treeDataProvider: {
      onDidChangeTreeData: changed.event,
      getChildren: async (node) => {
        if (node) return node.file ? [] : node.room.files.map((file) => ({ room: node.room, file }));
        return ((await ask<CodeMapResult>(server, codeMapRequest, {}))?.rooms ?? []).map((room) => ({ room }));
      },
      getTreeItem: ({ room, file }) => (file ? fileItem(file) : roomItem(room)),
    },
  });
  context.subscriptions.push(
    changed,
    tree,
    server.onDidChange(() => changed.fire()),
    // Files change while it is closed; it is read again when it is opened.
    tree.onDidChangeVisibility(({ visible }) => visible && changed.fire()),
  );
}

function roomItem({ room, summary, tokens, files }: Room): TreeItem {
  const item = new TreeItem(room, TreeItemCollapsibleState.Collapsed);
  item.description = summary;
  item.tooltip = `${room}: ${files.length} files, ${tokens} tokens\n${summary}`;
  item.iconPath = ThemeIcon.Folder;
  return item;
}

function fileItem({ file, summary, exports, importedBy }: Room["files"][number]): TreeItem {
  const item = new TreeItem(file.split("/").at(-1)!);
  item.description = summary;
  item.tooltip = `${file}: ${summary}\nexports ${exports.join(", ")}\nimported by ${importedBy.join(", ")}`;
  item.resourceUri = uriOf(file);
  item.iconPath = ThemeIcon.File;
  if (item.resourceUri) item.command = { title: "Open", command: "vscode.open", arguments: [item.resourceUri] };
  return item;
}

/** Files are named from a root of the workspace, or as the installed runner's. */
function uriOf(file: string): Uri | undefined {
  const roots = (workspace.workspaceFolders ?? []).map(({ uri }) => uri.fsPath);
  const places = roots.flatMap((root) => [
    join(root, file),
    join(installedRunner(root) ?? root, file.replace(/^molt-runner\//, "")),
  ]);
  const path = places.find((place) => existsSync(place));
  return path === undefined ? undefined : Uri.file(path);
}

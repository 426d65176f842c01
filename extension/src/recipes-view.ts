import { basename, dirname } from "node:path";
import { EventEmitter, ThemeIcon, TreeItem, type Uri, window, workspace } from "vscode";
import { verbOf } from "./client.ts";
import type { Services } from "./services.ts";
import { findRecipes } from "./targets.ts";

const settleMs = 300;

/** The tree of recipes: opens, runs and checks them. */
export function showRecipes({ server, context }: Services): void {
  const changed = new EventEmitter<void>();
  let timer: NodeJS.Timeout | undefined;
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(() => changed.fire(), settleMs);
  };
  const watcher = workspace.createFileSystemWatcher("**/*.{yaml,yml}");
  const tree = window.createTreeView<{ uri: Uri }>("molt.recipes", {
    treeDataProvider: {
      onDidChangeTreeData: changed.event,
      getChildren: async (node) => (node ? [] : (await findRecipes()).map((uri) => ({ uri }))),
      getTreeItem: async ({ uri }) => {
        const item = new TreeItem(basename(uri.fsPath));
        const folder = dirname(workspace.asRelativePath(uri));
        item.description = [await verbOf(server, uri), ...(folder === "." ? [] : [folder])].join(", ");
        item.tooltip = uri.fsPath;
        item.iconPath = new ThemeIcon("beaker");
        item.command = { title: "Open", command: "vscode.open", arguments: [uri] };
        return item;
      },
    },
  });
  context.subscriptions.push(
    { dispose: () => clearTimeout(timer) },
    changed,
    tree,
    watcher,
    watcher.onDidCreate(soon),
    watcher.onDidChange(soon),
    watcher.onDidDelete(soon),
    server.onDidChange(soon),
  );
}

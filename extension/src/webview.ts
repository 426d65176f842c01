import { type Event, type ExtensionContext, Uri, ViewColumn, type WebviewPanel, window } from "vscode";
import { pageHtml } from "./page-html.ts";

interface PageOptions {
  /** The panel's type: `molt.dashboard`. */
  view: string;
  /** Name of the bundle of `src/<page>.ts`. */
  page: string;
  title: string;
  column?: ViewColumn;
  /** One to fill again: what a serializer is given after a reload of the window. */
  panel?: WebviewPanel;
}

export interface Page<Received> {
  panel: WebviewPanel;
  /** Typed arrays cross as such. What is sent to a page that is hidden is lost: it asks anew when it is shown. */
  post(message: unknown): void;
  onMessage: Event<Received>;
}

/** Opens a webview on a page of ours. It reaches no network and runs our bundle alone; the host tells it everything. */
export function openPage<Received>(
  { context }: { context: ExtensionContext },
  { view, page, title, column = ViewColumn.Active, panel: given }: PageOptions,
): Page<Received> {
  const root = Uri.joinPath(context.extensionUri, "dist");
  const panel = given ?? window.createWebviewPanel(view, title, column);
  panel.title = title;
  panel.webview.options = { enableScripts: true, localResourceRoots: [root] };
  const address = (file: string) => panel.webview.asWebviewUri(Uri.joinPath(root, file)).toString();
  panel.webview.html = pageHtml({ title, script: address(`${page}.js`), style: address("page.css") });
  return {
    panel,
    post: (message) => void panel.webview.postMessage(message),
    onMessage: panel.webview.onDidReceiveMessage,
  };
}

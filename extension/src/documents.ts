import { type Disposable, Uri, window, workspace } from "vscode";
import { visible } from "../../runner/src/telemetry/views/lines.ts";

const texts = new Map<string, string>();

/** Texts that belong to no file: read only, gone with the window. */
export function registerDocuments(): Disposable {
  const provideTextDocumentContent = ({ path }: Uri) => texts.get(path) ?? "";
  return workspace.registerTextDocumentContentProvider("molt", { provideTextDocumentContent });
}

/** For a notification: VS Code makes a link, to a command too, of `[text](address)`, whoever wrote that. */
export const notice = (text: string) => `Molt Runner: ${visible(text).replaceAll("](", "] (")}`;

let count = 0;

export async function showText(name: string, text: string): Promise<void> {
  // A new address each time: the editor keeps what it has read of one.
  const uri = Uri.from({ scheme: "molt", path: `/${++count}/${name}` });
  texts.set(uri.path, text);
  await window.showTextDocument(uri);
}

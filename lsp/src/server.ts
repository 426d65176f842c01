import { fileURLToPath } from "node:url";
import {
  CodeActionKind,
  DidChangeWatchedFilesNotification,
  DocumentFormattingRequest,
  type InitializeParams,
  type InitializeResult,
  type ServerCapabilities,
  TextDocumentSyncKind,
  TextDocuments,
} from "vscode-languageserver";
import { createConnection, ProposedFeatures } from "vscode-languageserver/node";
import { TextDocument } from "vscode-languageserver-textdocument";
import { codeContext, codeMap } from "../../runner/src/code/index.ts";
import { Files } from "./files.ts";
import * as requests from "./requests.ts";
import { codeLenses } from "./service/code/lenses.ts";
import { definition, references, workspaceSymbols } from "./service/code/navigation.ts";
import { rename, renameRange } from "./service/code/rename.ts";
import { completions } from "./service/completion.ts";
import { diagnostics } from "./service/diagnostics.ts";
import { isYaml } from "./service/documents.ts";
import { explain, explanationText } from "./service/explain.ts";
import { quickFixes } from "./service/fixes.ts";
import { format } from "./service/format.ts";
import { inlayHints } from "./service/hints.ts";
import { hover } from "./service/hover.ts";
import { documentSymbols, foldingRanges } from "./service/outline.ts";
import { plan } from "./service/plan.ts";
import { resolved } from "./service/resolved.ts";
import type { Document } from "./service/workspace.ts";

/** Long enough for a burst of file events, too short to be felt. */
const debounceMs = 10;

/** What answers may rest on beside a document's own text: a recipe's parents, code, models. */
const watchers = [{ globPattern: "**/*.{yaml,yml,ts,mts,cts,js,mjs,cjs}" }, { globPattern: "**/config.json" }];

const capabilities: ServerCapabilities = {
  textDocumentSync: { openClose: true, change: TextDocumentSyncKind.Incremental, save: true },
  codeActionProvider: { codeActionKinds: [CodeActionKind.QuickFix] },
  completionProvider: { triggerCharacters: [" ", "/"] },
  hoverProvider: true,
  inlayHintProvider: true,
  codeLensProvider: {},
  definitionProvider: true,
  referencesProvider: true,
  renameProvider: { prepareProvider: true },
  documentSymbolProvider: true,
  workspaceSymbolProvider: true,
  foldingRangeProvider: true,
};

// The streams are given, not taken from arguments: stdio is the only transport, with or without `--stdio`.
const connection = createConnection(ProposedFeatures.all, process.stdin, process.stdout);
const documents = new TextDocuments(TextDocument);
const open = new Map<string, TextDocument>();
const files = new Files(open);
let canWatch = false;
/** In code it would stand in the way of an editor's own: where it lets us choose, it is for YAML alone. */
let canFormatYamlAlone = false;
let pending: NodeJS.Timeout | undefined;

connection.onInitialize(({ capabilities: client, workspaceFolders, rootUri }: InitializeParams): InitializeResult => {
  canWatch = client.workspace?.didChangeWatchedFiles?.dynamicRegistration ?? false;
  canFormatYamlAlone = client.textDocument?.formatting?.dynamicRegistration ?? false;
  const roots = workspaceFolders?.map(({ uri }) => uri) ?? (rootUri ? [rootUri] : []);
  files.roots = roots.flatMap((uri) => pathOf(uri) ?? []);
  const documentFormattingProvider = !canFormatYamlAlone;
  return { serverInfo: { name: "molt-runner-lsp" }, capabilities: { ...capabilities, documentFormattingProvider } };
});

connection.onInitialized(() => {
  const { client } = connection;
  const documentSelector = [{ scheme: "file", language: "yaml" }];
  const registrations = [
    canFormatYamlAlone && client.register(DocumentFormattingRequest.type, { documentSelector }),
    canWatch && client.register(DidChangeWatchedFilesNotification.type, { watchers }),
  ];
  Promise.all([files.readCode(), ...registrations]).catch(report);
});

// Recipes depend on files and on one another, and few are open: whatever changes, all of them are looked at again.
documents.onDidChangeContent(({ document }) => {
  const path = pathOf(document.uri);
  if (path === undefined) return;
  open.set(path, document);
  if (isYaml(path)) validateSoon("recipes");
  else files.forget("code");
});
// An editor that does not watch the disk for us has it read again when it opens or saves.
const onDisk = () => canWatch || validateSoon("disk");
documents.onDidOpen(onDisk);
documents.onDidSave(onDisk);
connection.onDidChangeWatchedFiles(() => validateSoon("disk"));

documents.onDidClose(({ document: { uri } }) => {
  const path = pathOf(uri);
  if (path === undefined) return;
  open.delete(path);
  connection.sendDiagnostics({ uri, diagnostics: [] }).catch(report);
  validateSoon("disk");
});

connection.onCodeAction(on((document, { range }) => quickFixes(document, range, files)));
connection.onCompletion(on((document, { position }) => completions(document, position, files)));
connection.onHover(onCode((document, { position }) => hover(document, position, files)));
connection.onDefinition(onCode((document, { position }) => definition(document, position, files)));
connection.onReferences(onCode((document, { position }) => references(document, position, files)));
connection.onPrepareRename(onCode((document, { position }) => renameRange(document, position, files)));
connection.onRenameRequest(onCode((document, { position, newName }) => rename(document, position, newName, files)));
connection.onDocumentSymbol(on(documentSymbols));
connection.onFoldingRanges(on(foldingRanges));
connection.onDocumentFormatting(on(format));
connection.onCodeLens(onCode((document) => codeLenses(document, files)));
connection.languages.inlayHint.on(on((document, { range }) => inlayHints(document, range, files)));
connection.onWorkspaceSymbol(async ({ query }) => {
  await files.readCode();
  return workspaceSymbols(query, files);
});

for (const [method, of] of [
  [requests.resolveRequest, resolved],
  [requests.planRequest, plan],
] as const) {
  connection.onRequest(
    method,
    on((document, _: requests.RecipeParams): unknown => of(document, files)),
  );
}
connection.onRequest(
  requests.explainRequest,
  onCode((document, { key }: requests.ExplainParams): requests.ExplainResult => {
    const found = explain(document, key, files);
    return found ? { ...found, text: explanationText(found) } : null;
  }),
);
connection.onRequest(requests.codeMapRequest, () => codeMap(files.codeSources()));
connection.onRequest(requests.contextRequest, (query: requests.ContextParams) =>
  codeContext(files.codeSources(), query),
);

documents.listen(connection);
connection.listen();

type Asked = { textDocument: { uri: string } } | requests.RecipeParams;

/** A function of the service as the answer to a request; null, which every one may be, where there is no such file. */
function on<P extends Asked, T>(answer: (document: Document, params: P) => T) {
  return async (params: P) => {
    const path = pathOf("textDocument" in params ? params.textDocument.uri : params.uri);
    const document = path === undefined ? undefined : files.document(path);
    return ((document && (await answer(document, params))) ?? null) as Exclude<Awaited<T>, undefined> | null;
  };
}

/** The same for one that asks the code, which the first takes a while to read: other requests go before it. */
function onCode<P extends Asked, T>(answer: (document: Document, params: P) => T) {
  return async (params: P) => {
    await files.readCode();
    return on(answer)(params);
  };
}

function validateSoon(changed: Parameters<Files["forget"]>[0]): void {
  files.forget(changed);
  clearTimeout(pending);
  pending = setTimeout(validateAll, debounceMs);
}

function validateAll(): void {
  for (const [path, document] of open) if (isYaml(path)) validate(path, document).catch(report);
}

async function validate(path: string, { uri, version }: TextDocument): Promise<void> {
  await connection.sendDiagnostics({ uri, version, diagnostics: diagnostics(files.document(path)!, files) });
}

/** Undefined for what is no file of this machine, or no address. */
function pathOf(uri: string): string | undefined {
  try {
    return uri.startsWith("file:") ? fileURLToPath(uri) : undefined;
  } catch {
    return undefined;
  }
}

function report(error: unknown): void {
  connection.console.error(error instanceof Error ? (error.stack ?? error.message) : String(error));
}

import { readFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import {
  CodeActionKind,
  DidChangeWatchedFilesNotification,
  type InitializeParams,
  type InitializeResult,
  TextDocumentSyncKind,
  TextDocuments,
} from "vscode-languageserver";
import { createConnection, ProposedFeatures } from "vscode-languageserver/node";
import { TextDocument } from "vscode-languageserver-textdocument";
import { type VerbParams, type VerbResult, verbRequest } from "./requests.ts";
import { type Document, diagnostics, quickFixes } from "./service/diagnostics.ts";
import { verb } from "./service/verb.ts";

/** Long enough for a burst of keystrokes or of file events, short enough to feel immediate. */
const debounceMs = 150;

/** What a recipe's diagnostics may rest on beside its own text: its parents. */
const watchedFiles = "**/*.{yaml,yml}";

// The streams are given, not taken from arguments: stdio is the only transport, with or without `--stdio`.
const connection = createConnection(ProposedFeatures.all, process.stdin, process.stdout);
const documents = new TextDocuments(TextDocument);
let canWatch = false;
let pending: NodeJS.Timeout | undefined;

connection.onInitialize(({ capabilities }: InitializeParams): InitializeResult => {
  canWatch = capabilities.workspace?.didChangeWatchedFiles?.dynamicRegistration ?? false;
  return {
    serverInfo: { name: "molt-runner-lsp" },
    capabilities: {
      textDocumentSync: TextDocumentSyncKind.Full,
      codeActionProvider: { codeActionKinds: [CodeActionKind.QuickFix] },
    },
  };
});

connection.onInitialized(() => {
  if (!canWatch) return;
  const watchers = [{ globPattern: watchedFiles }];
  connection.client.register(DidChangeWatchedFilesNotification.type, { watchers }).catch(report);
});

// Recipes depend on files and on one another, and few are open: whatever changes, all of them are looked at again.
documents.onDidChangeContent(validateSoon);
connection.onDidChangeWatchedFiles(validateSoon);

documents.onDidClose(({ document }) => {
  connection.sendDiagnostics({ uri: document.uri, diagnostics: [] }).catch(report);
  validateSoon();
});

connection.onCodeAction(({ textDocument, range }) => {
  const document = documents.get(textDocument.uri);
  return document && isFile(document) ? quickFixes(toDocument(document), range, readFile) : [];
});

connection.onRequest(verbRequest, ({ uri }: VerbParams): VerbResult => {
  const path = fileURLToPath(uri);
  return verb({ path, text: readFile(path) ?? "" }, readFile);
});

documents.listen(connection);
connection.listen();

function validateSoon(): void {
  clearTimeout(pending);
  pending = setTimeout(validateAll, debounceMs);
}

function validateAll(): void {
  for (const document of documents.all().filter(isFile)) validate(document).catch(report);
}

async function validate(document: TextDocument): Promise<void> {
  const found = diagnostics(toDocument(document), readFile);
  await connection.sendDiagnostics({ uri: document.uri, version: document.version, diagnostics: found });
}

/** An open editor's text, saved or not, before the disk's. */
function readFile(path: string): string | undefined {
  const open = documents.get(pathToFileURL(path).href);
  if (open) return open.getText();
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}

function isFile({ uri }: TextDocument): boolean {
  return uri.startsWith("file:");
}

function toDocument(document: TextDocument): Document {
  return { uri: document.uri, path: fileURLToPath(document.uri), text: document.getText() };
}

function report(error: unknown): void {
  connection.console.error(error instanceof Error ? (error.stack ?? error.message) : String(error));
}

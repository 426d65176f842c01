import { execFile } from "node:child_process";
import { dirname } from "node:path";
import { type CancellationToken, type Uri, workspace } from "vscode";
import { deadlineMs } from "../../runner/src/deadline.ts";
import { ExitCode } from "../../runner/src/errors.ts";
import { type Located, locateRunner, readVersions } from "./locate.ts";

/** The runner that serves a file or a run: each root of a workspace may have its own. */
export interface Runner extends Located {
  /** Where it is started: the workspace's folder of the file, else the file's own. */
  cwd: string;
  /** Null where its folder is not known. */
  version: string | null;
}

/** No runner is installed where a file could use it. */
export class MissingRunner extends Error {
  constructor(readonly uri: Uri) {
    super("molt-runner is not installed in this folder or above it, and molt.runnerPath names none");
  }
}

/** The runner that the setting names, else the one installed nearest. Rejects with `MissingRunner` where none is. */
export async function runnerFor(uri: Uri): Promise<Runner> {
  if (!workspace.isTrusted) throw new Error("nothing runs in a workspace that is not trusted");
  const located = locate(uri);
  if (!located) throw new MissingRunner(uri);
  const versions = located.folder === null ? null : readVersions(located.folder);
  return { ...located, version: versions?.version ?? null };
}

/** Only looks for it. */
export function locate(uri: Uri): Omit<Runner, "version"> | null {
  const cwd = workspace.getWorkspaceFolder(uri)?.uri.fsPath ?? dirname(uri.fsPath);
  const located = locateRunner(uri.fsPath, cwd, workspace.getConfiguration("molt", uri).get("runnerPath", ""));
  return located && { ...located, cwd };
}

/** Runs a verb to its end, or to its deadline (60 s). Rejects only where it could not be started or was ended. */
export function runVerb(
  { command: [program, ...words], cwd }: Pick<Runner, "command" | "cwd">,
  args: string[],
  { timeoutS = 60, token }: { timeoutS?: number; token?: CancellationToken } = {},
): Promise<{ code: number; stdout: string; stderr: string }> {
  const options = { cwd, timeout: deadlineMs(timeoutS), maxBuffer: 64 << 20 };
  return new Promise((done, fail) => {
    const child = execFile(program!, [...words, ...args], options, (error, stdout, stderr) => {
      watching?.dispose();
      const why = token?.isCancellationRequested ? "is not waited for any more" : `was ended after ${timeoutS} s`;
      // A word, unlike an exit code: of a program that is not there, or that says more than is taken.
      if (typeof error?.code === "string") fail(new Error(`molt-runner ${args[0]}, by ${program}: ${error.message}`));
      else if (error?.killed) fail(new Error(`molt-runner ${args[0]} ${why}`));
      else done({ code: error?.code ?? 0, stdout, stderr });
    });
    const watching = token?.onCancellationRequested(() => child.kill());
  });
}

/** What a verb printed. Rejects with what it says is wrong; having nothing to do is no fault. */
export async function verbText(...given: Parameters<typeof runVerb>): Promise<string> {
  const { code, stdout, stderr } = await runVerb(...given);
  if (code !== ExitCode.done && code !== ExitCode.nothing) {
    throw new Error(stderr.trim().replace(/^error /, "") || `molt-runner ${given[1][0]} ended with code ${code}`);
  }
  return stdout.trim();
}

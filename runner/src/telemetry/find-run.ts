import { existsSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { usageError } from "../errors.ts";
import { entriesOf } from "../files.ts";
import { shorten } from "../lists.ts";

export { ownerOf, workerOf } from "../loop/run-directory.ts";

/** Runs below `root`, the one written to last first; `writtenAt` in milliseconds since the epoch. */
export function listRuns(root: string): { id: string; path: string; writtenAt: number }[] {
  // Beside them may lie files, such as the log of a run that was started by a tool.
  const folders = entriesOf(root).filter((entry) => !entry.isFile());
  const runs = folders.map(({ name: id }) => {
    const path = resolve(root, id);
    const log = statSync(join(path, "events.ndjson"), { throwIfNoEntry: false });
    return { id, path, writtenAt: log?.mtimeMs ?? 0 };
  });
  return runs.filter((run) => run.writtenAt > 0).sort((one, other) => other.writtenAt - one.writtenAt);
}

/**
 * The directory of the run that a user means: by a path, or below `root` by its id, the beginning of one id, or
 * `latest`, the run written to last, of those that have a `holding`. A name leads nowhere else: what holds a separator
 * is a path.
 */
export function findRun(nameOrPath: string, root = "runs", holding = ""): string {
  if (existsSync(join(nameOrPath, "events.ndjson"))) return resolve(nameOrPath);
  const fix = "name a run as molt-runner runs lists it, or a folder that holds events.ndjson and recipe.yaml";
  if (/[\\/]|^\.*$/.test(nameOrPath)) throw usageError(`${nameOrPath} is not a run directory`, { fix });
  const runs = listRuns(root);
  const begun = runs.filter(({ id }) => id.startsWith(nameOrPath));
  const isMeant = ({ id, path }: (typeof runs)[number]) =>
    nameOrPath === "latest" ? existsSync(join(path, holding)) : id === nameOrPath;
  const found = runs.find(isMeant);
  if (found) return found.path;
  if (begun.length === 1) return begun[0]!.path;
  const what = begun.length > 1 ? `several runs begin with '${nameOrPath}'` : `no run '${nameOrPath}' in ${root}`;
  const ids = (begun.length > 1 ? begun : runs).map(({ id }) => id);
  throw usageError(ids.length > 0 ? `${what}: there are ${shorten(ids, 5)}` : what, { fix });
}

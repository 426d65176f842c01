import { existsSync } from "node:fs";
import { join } from "node:path";
import { ProgressLocation, Uri, window } from "vscode";
import { listCheckpoints } from "../../runner/src/loop/checkpoint.ts";
import { notice } from "./documents.ts";
import { splitWords } from "./locate.ts";
import { runnerFor, verbText } from "./runner.ts";
import type { RunEntry } from "./runs.ts";
import type { Services } from "./services.ts";
import { type RecipeTarget, type RunTarget, recipeTarget, runTarget } from "./targets.ts";
import { runTask } from "./tasks.ts";

/** Ends a run in order and says how it ended. Who does not wait for that leaves it to itself. */
export function stopRun({ runs }: Services) {
  return async (target: RunTarget) => {
    const entry = await runTarget(runs, target, "live run", (one) => one.live);
    if (!entry) return;
    const runner = await runnerFor(Uri.file(entry.directory));
    const title = notice(`${entry.id} finishes the step at hand`);
    const options = { location: ProgressLocation.Notification, title, cancellable: true };
    const text = await window.withProgress(options, (_, token) =>
      verbText(runner, ["stop", entry.directory], { timeoutS: 630, token }).catch((error) => {
        if (!token.isCancellationRequested) throw error;
      }),
    );
    await runs.refresh();
    if (text) window.showInformationMessage(notice(text.split("\n")[0]!));
  };
}

export function resumeRun({ runs }: Services) {
  return async (target: RunTarget) => {
    const entry = await runTarget(runs, target, "run without a process", (one) => !one.live);
    if (entry) await runTask("resume", Uri.file(entry.directory));
  };
}

/** Asks for the checkpoint and for what is to differ, and goes on as a new run. */
export function forkRun({ runs }: Services) {
  return async (target: RunTarget) => {
    const has = (entry: RunEntry) => checkpointsOf(entry).length > 0;
    const entry = await runTarget(runs, target, "run with a checkpoint", has);
    if (!entry) return;
    const steps = checkpointsOf(entry).map(({ step }) => ({ label: `step ${step}`, step }));
    if (steps.length === 0) throw new Error(`${entry.id} has no checkpoint: ckpt.save_steps says when one is written`);
    const placeHolder = `Checkpoint of ${entry.id} to go on from`;
    // Between two questions a webview may take the focus back.
    const from = await window.showQuickPick(steps.reverse(), { placeHolder, ignoreFocusOut: true });
    if (!from) return;
    const prompt = "What is to differ, as flags: every key of a recipe is one. At a run's end: more run.steps.";
    const example = "--actor.adam.lr 1e-4 --run.steps 400";
    const flags = await window.showInputBox({ prompt, placeHolder: example, ignoreFocusOut: true });
    if (flags === undefined) return;
    await runTask("fork", Uri.file(entry.directory), ["--step", String(from.step), ...splitWords(flags)]);
  };
}

const checkpointsOf = ({ directory }: RunEntry) => listCheckpoints(join(directory, "checkpoints"));

/** A recipe's model, or of a run the one that it trained, on the recipe's held-out rows. */
export function evaluateTarget(_: Services) {
  return async (target: RecipeTarget | { entry: RunEntry }) => {
    const entry = typeof target === "object" && "entry" in target ? target.entry : undefined;
    // The file it was started from, else the copy it keeps.
    const own = entry && Uri.file(entry.recipe ?? join(entry.directory, "recipe.yaml"));
    const uri = own ?? (await recipeTarget(target as RecipeTarget));
    const model = entry && join(entry.directory, "export");
    if (model && !existsSync(model)) throw new Error(`${entry.id} has no export yet: it is written at a run's end`);
    if (uri) await runTask("eval", uri, model ? ["--actor.model_name_or_path", model] : []);
  };
}

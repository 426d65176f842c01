import { tmpdir } from "node:os";
import { join } from "node:path";
import { bundleRoot } from "../agents/bundle.ts";
import { loadAgent } from "../agents/load.ts";
import { agentSource } from "../agents/pool.ts";
import { playback } from "../agents/recorded.ts";
import { inFolder } from "../agents/subprocess.ts";
import type { Rollout } from "../agents/types.ts";
import { ExitCode, RunnerError } from "../errors.ts";
import { rolloutLimits } from "../loop/parts.ts";
import { findRollout } from "../telemetry/shards.ts";
import { openRecordedRun, readRows } from "./recorded-run.ts";

/** Runs a rollout's agent again, in this process and without an engine: the policy says what was recorded. */
export async function replayCommand(name: string, rolloutId: string, { json }: { json: boolean }): Promise<number> {
  // Whoever steps through an agent takes their time.
  process.env.MOLT_DEADLINE_SCALE ??= "100";
  process.setSourceMapsEnabled(true);
  const { directory, recipe, tokenizer } = await openRecordedRun(name);
  const { rollout } = await findRollout(directory, rolloutId);
  const rowOf = await readRows(recipe);
  const { agent_path: agentPath, agent_command: agentCommand, grader_command: graderCommand } = recipe.train;
  const { generate, open } = playback(rollout, tokenizer);
  const router = { acquire: async () => ({ url: "", engine: 0, version: null, release: () => {} }) };
  const context = {
    runId: rollout.runId,
    seed: recipe.run.seed,
    tokenizer,
    limits: rolloutLimits(recipe),
    router,
    generate,
  };
  const sampling = { temperature: recipe.rollout.temperature, topP: 1, topK: 0, maxNewTokens: null };
  const task = { ...rollout, row: rowOf(rollout.promptId), sampling };
  const outcome = await inFolder(join(bundleRoot(tmpdir()), ".molt-agent-"), async (folder) => {
    const source = await agentSource({ agentPath, agentCommand, graderCommand }, folder);
    const run = await loadAgent(source, context, (_, text) => console.error(`warning: ${text}`));
    return run(task, new AbortController().signal);
  });
  if (!("segments" in outcome)) throw new RunnerError(`the replay failed (${outcome.reason}): ${outcome.message}`);
  const said = ({ reward, stop }: Rollout) => ({ reward, stop });
  const [replayed, recorded] = [said(outcome), said(rollout)];
  const text = `reward ${replayed.reward} (${replayed.stop}), recorded ${recorded.reward} (${recorded.stop})`;
  const left = open.length;
  console.log(json ? JSON.stringify({ replayed, recorded, left }) : `${text}; recorded calls left ${left}`);
  return ExitCode.done;
}

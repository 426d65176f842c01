import { fileURLToPath } from "node:url";
import { beforeAll, expect, test } from "vitest";
import { read } from "../../test/tree.ts";
import { runEnvRollout } from "../agents/env-runner.ts";
import { failures } from "../agents/failures.ts";
import { ModelCalls } from "../agents/model-calls.ts";
import type { RolloutContext, RolloutLimits, RolloutTask } from "../agents/rollout.ts";
import { Env, type FailedRollout, type Group, type Rollout, type StepResult } from "../agents/types.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { withDeadline } from "../deadline.ts";
import type { CallOptions } from "../engines/client.ts";
import type { GenerateRequest, GenerateResult } from "../engines/types.ts";
import { funnelOf } from "../telemetry/funnel.ts";
import { outcomesOf } from "./outcomes.ts";

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../../recipes/quickstart/model", import.meta.url)));
});

const end = 5;
const limits = { maxLen: 40, maxTurns: 2, rolloutSeconds: 20, turnSeconds: 10, toolSeconds: 10, heldSeconds: 10 };
const row = { id: "rows:1", messages: [{ role: "user" as const, content: "hi" }], label: null, fields: {} };
const more = { reward: 0, done: false, messages: [{ role: "tool" as const, content: "t" }] };
const done = { reward: 1, done: true };

type Engine = (
  request: GenerateRequest,
  options: CallOptions,
  call: number,
) => Promise<GenerateResult> | GenerateResult;

const says = (tokenIds: number[], stop: GenerateResult["stop"]): GenerateResult => {
  return { tokenIds, logprobs: tokenIds.map(() => -1), versions: tokenIds.map(() => 0), stop };
};
/** Whatever it is asked, all that it may say. */
const talkative: Engine = ({ sampling }) => says(Array(sampling.maxTokens).fill(86), "length");
const brief: Engine = () => says([86, end], "stop");
const silent: Engine = (_, { timeoutSeconds }) =>
  withDeadline(new Promise<GenerateResult>(() => {}), timeoutSeconds, "the engine");

function session(id: string, engine: Engine, maxNewTokens: number | null, changed: Partial<RolloutLimits> = {}) {
  let calls = 0;
  const context = {
    runId: "run",
    seed: 1,
    tokenizer,
    limits: { ...limits, ...changed },
    router: { acquire: async () => ({ url: "", engine: 0, version: 0, release: () => {} }) },
    generate: async (_: string, request: GenerateRequest, options: CallOptions) => engine(request, options, calls++),
    locate: () => undefined,
  } as unknown as RolloutContext;
  const sampling = { temperature: 1, topP: 1, topK: 0, maxNewTokens };
  const task: RolloutTask = { row, groupId: id, rolloutId: id, attempt: 0, sampling };
  return { task, context };
}

/** An Env whose steps are answered so, one after the other. */
function play(id: string, steps: StepResult[], ...how: [Engine, number | null, Partial<RolloutLimits>?]) {
  class Scripted extends Env {
    step({ turn }: { turn: number }) {
      return steps[turn]!;
    }
  }
  const { task, context } = session(id, ...how);
  return runEnvRollout(() => new Scripted(), task, context, new AbortController().signal);
}

/** A client that went away before its reply: the call is kept, and marked. */
async function leave(id: string): Promise<Rollout> {
  const { task, context } = session(id, brief, 8);
  const calls = new ModelCalls(task, context, new AbortController().signal);
  const pending = await calls.session.prepare(row.messages);
  const { sampled, info } = (await calls.sample(pending))!;
  calls.session.commit(pending, sampled, null, info).isDelivered = false;
  return calls.toRollout({ reward: 0 }, "env_done");
}

// case G2
test("each stop reason has a session, and shows in the breakdown", async () => {
  const slow: Engine = (request, options, call) => (call === 0 ? brief : silent)(request, options, call);
  const outcomes = [
    await play("ends", [done], brief, 8),
    await play("turns", [more, more], talkative, 2),
    await play("context", [more], talkative, null),
    await play("timeout", [more], slow, 8, { rolloutSeconds: 2 }),
    await leave("abort"),
    await play("infra", [done], silent, 8, { turnSeconds: 0.01 }),
  ];
  const rollouts = outcomes.filter((outcome): outcome is Rollout => "segments" in outcome);
  const failed = outcomes.filter((outcome): outcome is FailedRollout => !("segments" in outcome));
  const ids = { groupId: "g", promptId: "p", epoch: 0, admittedVersion: 0, attempt: 0 };
  const group: Group = { ...ids, rollouts, failed };
  // By hand: six calls were answered, two of "turns" and one each of the others that did not fail.
  const metrics = outcomesOf([{ group }]);
  expect(Object.keys(metrics).sort()).toEqual([
    "failed/engine",
    "turn/abort",
    "turn/context",
    "turn/length",
    "turn/stop",
  ]);
  expect(metrics["failed/engine"]).toBe(1);
  for (const [name, calls] of Object.entries({ stop: 2, length: 2, context: 1, abort: 1 })) {
    expect(metrics[`turn/${name}`]).toBeCloseTo(calls / 6, 12);
  }
  expect(funnelOf([{ group }]).examples).toMatchObject({
    "stop/env_done": ["ends", "abort"],
    "stop/max_turns": ["turns"],
    "stop/context": ["context"],
    "stop/timeout": ["timeout"],
  });
});

test("docs/operations.md says of each failure whether it is tried again", () => {
  const table = read("docs/operations.md").split("| reason | what failed | tried again |")[1]!.split("\n\n")[0]!;
  const rows = [...table.matchAll(/^\| `(\w+)` \|.*\| (yes|no) \|$/gm)].map(([, reason, again]) => [reason, again]);
  const ours = Object.entries(failures).map(([reason, again]) => [reason, again === "again" ? "yes" : "no"]);
  expect(rows).toEqual(ours);
});

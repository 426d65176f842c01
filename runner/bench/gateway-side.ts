/** The process that `npm run bench:gateway` measures: rollouts behind the gateway, and an engine that is a script. */
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { runClientRollout } from "../src/agents/client-runner.ts";
import { Gateway } from "../src/agents/gateway.ts";
import type { RolloutContext, RolloutLimits, RolloutTask } from "../src/agents/rollout.ts";
import type { ChatContext, ChatResult, FailedRollout, Rollout } from "../src/agents/types.ts";
import { Tokenizer } from "../src/data/tokenizer.ts";

/** `open` is answered by a base URL once the rollout runs; `close` by its tokens once it has ended. */
export type SideRequest =
  | { id: number; kind: "open"; delayMs: number }
  | { id: number; kind: "close"; of: number }
  | { id: number; kind: "measure" };

/** Processor time of all threads since the start, and memory after a collection that is not in it. */
export interface Measure {
  cpuMs: number;
  heapMb: number;
  residentMb: number;
}

const minutes = 60;
const limits: RolloutLimits = {
  maxLen: 100_000,
  maxTurns: 1000,
  maxRequests: 1000,
  rolloutSeconds: 10 * minutes,
  turnSeconds: minutes,
  toolSeconds: minutes,
  rewardSeconds: minutes,
  heldSeconds: minutes,
};
const tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../src/data/fixtures/bytelevel", import.meta.url)));
const gateway = await Gateway.start(tokenizer, (_, text) => console.error(text));
const replyIds = [
  ...(await tokenizer.encode("I looked, and the answer is in the second file.")),
  ...tokenizer.eosTokenIds,
];
const open = new Map<number, { finish: () => void; rollout: Promise<Rollout | FailedRollout> }>();

function start(id: number, delayMs: number): Promise<string> {
  const task: RolloutTask = {
    row: { id: `rows:${id}`, messages: [], label: null, fields: {} },
    groupId: String(id),
    rolloutId: String(id),
    attempt: 0,
    sampling: { temperature: 1, topP: 1, topK: 0, maxNewTokens: null },
  };
  const context: RolloutContext = {
    runId: "bench",
    seed: 1,
    tokenizer,
    limits,
    router: { acquire: async () => ({ url: "", engine: 0, version: 0, release: () => {} }) },
    generate: async () => {
      if (delayMs > 0) await sleep(delayMs);
      return {
        tokenIds: [...replyIds],
        logprobs: replyIds.map(() => -1),
        versions: replyIds.map(() => 0),
        stop: "stop",
      };
    },
    locate: () => undefined,
  };
  return new Promise((resolve) => {
    let finish = () => {};
    const agent = ({ baseUrl }: ChatContext) =>
      new Promise<ChatResult>((end) => {
        finish = () => end({ reward: 1 });
        resolve(baseUrl);
      });
    const rollout = runClientRollout(agent, gateway, task, context, new AbortController().signal);
    open.set(id, { finish: () => finish(), rollout });
  });
}

async function close(id: number): Promise<number> {
  const { finish, rollout } = open.get(id)!;
  open.delete(id);
  finish();
  const ended = await rollout;
  if (!("segments" in ended)) throw new Error(ended.message);
  return ended.segments.reduce((sum, { tokens }) => sum + tokens.length, 0);
}

const cpuMs = () => (process.cpuUsage().user + process.cpuUsage().system) / 1000;
/** Of the collections that only measuring asks for. */
let collectingMs = 0;

function measure(): Measure {
  const before = cpuMs();
  globalThis.gc!();
  collectingMs += cpuMs() - before;
  const { heapUsed, rss } = process.memoryUsage();
  return { cpuMs: cpuMs() - collectingMs, heapMb: heapUsed / 2 ** 20, residentMb: rss / 2 ** 20 };
}

async function answer(request: SideRequest): Promise<unknown> {
  if (request.kind === "open") return start(request.id, request.delayMs);
  return request.kind === "close" ? close(request.of) : measure();
}

process.on("message", async (request: SideRequest) => process.send!({ id: request.id, answer: await answer(request) }));
process.on("disconnect", () => process.exit());

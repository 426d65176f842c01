import { expect, it } from "vitest";
import { verb } from "../src/service/verb.ts";

const replies = "data: { prompt_dataset: a.jsonl, output_key: reply }\n";
const agent = "train: { agent_path: agent.ts }\n";
const parents: Record<string, string> = { "/p/recipes/base.yaml": replies };
const verbOf = (text: string) => verb({ path: "/p/recipes/r.yaml", text }, (path) => parents[path]);

it.each([
  ["a reply column and no agent", replies, "sft"],
  ["an agent", agent, "run"],
  ["both", replies + agent, "run"],
  ["a reply column from the parent", "extends: base.yaml\n", "sft"],
  ["the parent's, and an agent of its own", `extends: base.yaml\n${agent}`, "run"],
  ["a misspelt key beside", `${replies}rollout: { batch_sise: 4 }\n`, "sft"],
  ["nothing", "", "run"],
  ["no YAML", "a: [", "run"],
])("%s: %s", (_, text, expected) => {
  expect(verbOf(text)).toBe(expected);
});

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeEach, expect, test, vi } from "vitest";
import { importCommand } from "./import.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-import-verb-"));
const script = join(folder, "train.sh");
const output = join(folder, "train.yaml");
writeFileSync(
  script,
  "python3 -m molt.cli.train_rl_ray \\\n  --run.unknown 3 --rollout.temperature 0.7 " +
    "--fsdp.tp_size 2 --rollout.batch_size 100\n",
);
let out: string[];

beforeEach(() => {
  out = [];
  vi.spyOn(console, "log").mockImplementation((line: string) => void out.push(line));
});
afterEach(() => vi.restoreAllMocks());
afterAll(() => rmSync(folder, { recursive: true }));

test("writes the recipe, names what is left, and overwrites nothing", () => {
  expect(importCommand(script, { output, json: false })).toBe(0);
  expect(readFileSync(output, "utf8")).toContain("  temperature: 0.7  # line 2\n");
  const fix = "set train.updates_per_batch";
  expect(out).toEqual([
    `${script}:2 --run.unknown 3: no key corresponds to it`,
    `${script}:2 --fsdp.tp_size 2: not in this version`,
    `${script} (a default) --train.batch_size 128: 100 rollouts do not divide into steps of 128 rows: ${fix}`,
    `${output} is written; next: molt-runner check ${output}`,
  ]);
  writeFileSync(output, "mine\n");
  expect(() => importCommand(script, { output, json: false })).toThrow("there is such a file already");
  expect(readFileSync(output, "utf8")).toBe("mine\n");
});

test("reports in JSON; a script that is not there is named", () => {
  const other = join(folder, "other.yaml");
  importCommand(script, { output: other, json: true });
  const { recipe, verb, left } = JSON.parse(out.join(""));
  expect([recipe, verb]).toEqual([other, "run"]);
  expect(left.at(-2)).toEqual({ line: 2, flag: "--fsdp.tp_size", value: "2", why: "not in this version" });
  const none = join(folder, "none.yaml");
  expect(() => importCommand(join(folder, "no.sh"), { output: none, json: false })).toThrow("no such file");
  expect(existsSync(none)).toBe(false);
});

import { mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { read, root } from "../../test/tree.ts";
import { tokenMetrics } from "../algorithms/metrics.ts";
import { ageOf } from "../loop/outcomes.ts";
import { recipeKeys, recipeSections } from "../recipe/index.ts";
import { CodeIndex, type CodeLocation } from "./code-index.ts";
import { CodeFolder } from "./folder.ts";
import { registryKinds } from "./mentions.ts";

const index = new CodeIndex(new CodeFolder(root).files());
/** From the place to the end of its line. */
const textAt = ({ file, line, character }: CodeLocation) =>
  readFileSync(file, "utf8").split("\n")[line]!.slice(character);
const relative = (place: CodeLocation | undefined) => place && `${place.file.slice(root.length)}: ${textAt(place)}`;

describe("this repository's index", () => {
  it("has the schema's line of every key and section", () => {
    const wrong = [...recipeKeys.keys(), ...recipeSections.keys()].filter((key) => {
      const place = index.definitionOf("key", key);
      const leaf = key.split(".").at(-1)!;
      // The section `eval` is the constant `evaluation`: its name is no word that a constant may have.
      return !place?.file.includes("/recipe/schema/") || !textAt(place).startsWith(leaf);
    });
    expect(wrong).toEqual([]);
  });

  it("knows where a key is read, at the name itself, and never counts the schema", () => {
    const places = index.readersOf("rollout.batch_size").map(relative);
    expect(places).toContainEqual(expect.stringMatching(/^runner\/src\/recipe\/arithmetic\.ts: batch_size/));
    expect(places.filter((place) => place!.includes("recipe/schema/"))).toEqual([]);
    expect(index.readersOf("rollout.new_key")).toEqual([]);
  });

  it("says of every place exactly the name that stands there", () => {
    const all = index.files.flatMap(({ path, record }) => record.mentions.map((one) => ({ file: path, ...one })));
    expect(all.length).toBeGreaterThan(300);
    const wrong = all.filter((one) => {
      const leaf = one.kind === "key" ? one.name.split(".").at(-1)! : one.name;
      const shown = textAt(one).slice(0, one.length);
      return shown !== leaf && shown !== `"${leaf}"` && shown !== "evaluation";
    });
    expect(wrong).toEqual([]);
  });

  it("has every name that the schema offers, with its function", () => {
    for (const [key, kind] of Object.entries(registryKinds)) {
      expect(index.namesOf(kind)).toEqual(expect.arrayContaining(recipeKeys.get(key)!.values));
    }
    expect(relative(index.definitionOf("estimator", "reinforce_baseline"))).toBe(
      "runner/src/algorithms/advantages/reinforce-baseline.ts: " +
        "reinforceBaseline: AdvantageEstimator = (rollouts, spec) =>",
    );
    expect(relative(index.definitionOf("loss", "ppo"))).toMatch(/^runner\/src\/algorithms\/losses\/ppo\.ts: ppo: /);
    expect(relative(index.definitionOf("filter", "drop"))).toMatch(/filters\/dynamic-filtering\.ts: signal: /);
    expect(relative(index.definitionOf("estimator", "gae"))).toMatch(
      /^runner\/src\/algorithms\/advantages\/gae\.ts: gae/,
    );
    expect(index.definitionOf("estimator", "magic")).toBeUndefined();
  });

  it("has the metrics that a step really gives", () => {
    const none = { trained: new Uint8Array(), logp: new Float32Array(), old: new Float32Array() };
    const more = { behaviour: new Float32Array(), entropy: new Float32Array(), ref: new Float32Array() };
    const { sums, maxima } = tokenMetrics({ ...none, ...more }, () => 0);
    const given = [
      ...Object.keys({ ...sums, ...maxima, ...ageOf([], 0) }),
      "reward",
      "grad_norm",
      "accuracy",
      "sampled",
    ];
    expect(index.namesOf("metric")).toEqual(expect.arrayContaining(given));
    // Members of an engine's own `metrics` and of maps called `sums` are none.
    expect(index.namesOf("metric").filter((name) => ["text", "get", "set", "contentType"].includes(name))).toEqual([]);
  });

  it("has the events and the agents", () => {
    // What the fold and the terminal tell apart, by hand.
    expect(index.namesOf("event")).toEqual(expect.arrayContaining(["ended", "eval", "resumed", "started", "step"]));
    expect(relative(index.definitionOf("event", "sync"))).toMatch(/^runner\/src\/telemetry\/events\.ts: "sync"/);
    expect(index.namesOf("agent")).toEqual(expect.arrayContaining(["FollowPointers", "SortDigits"]));
    expect(relative(index.definitionOf("agent", "FollowPointers"))).toMatch(/^recipes\/pointers\/agent\.ts: /);
  });

  it("knows what a place is called in recipes", () => {
    const at = (path: string, text: string) => {
      const lines = read(path).split("\n");
      const line = lines.findIndex((one) => one.includes(text));
      return index.nameAt({ file: join(root, path), line, character: lines[line]!.indexOf(text) });
    };
    const advantages = "runner/src/algorithms/advantages";
    expect(at(`${advantages}/grpo.ts`, "grpo: Adv")).toEqual({ kind: "estimator", name: "grpo" });
    expect(at(`${advantages}/registry.ts`, "reinforce_baseline")).toMatchObject({ name: "reinforce_baseline" });
    expect(at("recipes/pointers/agent.ts", "FollowPointers")).toEqual({ kind: "agent", name: "FollowPointers" });
    expect(at(`${advantages}/grpo.ts`, "perGroup(")).toBeUndefined();
  });
});

describe("a folder", () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "molt-code-"));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  const agent = (name: string) => `import { Env } from "molt-runner";\nexport default class ${name} extends Env {}\n`;

  it("is parsed again where it changed, prefers what is open, and outlives what does not parse", () => {
    const path = join(folder, "agent.ts");
    const code = new CodeFolder(folder);
    const agents = (open?: string) =>
      new CodeIndex(code.files((file) => (file === path ? open : undefined))).namesOf("agent");
    writeFileSync(path, agent("First"));
    writeFileSync(join(folder, "agent.test.ts"), agent("Test"));
    const [before] = code.files();
    expect(agents()).toEqual(["First"]);
    expect(code.files()[0]).toBe(before);
    writeFileSync(path, agent("Later"));
    utimesSync(path, 1, 1);
    expect(agents()).toEqual(["Later"]);
    expect(agents(agent("Open"))).toEqual(["Open"]);
    expect(agents("export default class {{{ `")).toEqual([]);
    expect(agents(`${agent("Binary")}\0`)).toEqual([]);
    expect(agents()).toEqual(["Later"]);
  });
});

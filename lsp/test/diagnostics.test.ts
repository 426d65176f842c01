import { describe, expect, it } from "vitest";
import { type Diagnostic, DiagnosticSeverity, type Position, type TextEdit } from "vscode-languageserver";
import { TextDocument } from "vscode-languageserver-textdocument";
import { diagnostics } from "../src/service/diagnostics.ts";
import { quickFixes } from "../src/service/fixes.ts";
import { workspaceOf } from "./golden.ts";

const uri = "file:///project/recipes/sort.yaml";
const path = "/project/recipes/sort.yaml";
const nothing = workspaceOf();

/** A recipe with nothing wrong, for the tests to spoil. */
const sound = `actor: { model_name_or_path: model, init: random }
data: { prompt_dataset: prompts.jsonl }
train: { agent_path: agent.ts }
`;

const source = (text: string) => TextDocument.create(uri, "yaml", 0, text);

/** Takes the marks `«` and `»` out of the text: what lies between them must be what is underlined. */
function check(marked: string, expected: string | RegExp, files = nothing): Diagnostic {
  const underlined = /«(.*)»/s.exec(marked)?.[1];
  const text = marked.replace(/[«»]/g, "");
  const found = diagnostics({ uri, path, text }, files);
  expect(found.map(({ message }) => message)).toEqual([expect.stringMatching(expected)]);
  expect(source(text).getText(found[0]!.range)).toBe(underlined);
  return found[0]!;
}

/** Applies the only quick fix at the mark `$0`. */
function fix(marked: string): { title: string; text: string } | undefined {
  const text = marked.replace("$0", "");
  const position: Position = source(text).positionAt(marked.indexOf("$0"));
  const actions = quickFixes({ uri, path, text }, { start: position, end: position }, nothing);
  expect(actions.length).toBeLessThan(2);
  if (!actions[0]) return undefined;
  const edits: TextEdit[] = actions[0].edit!.changes![uri]!;
  return { title: actions[0].title, text: TextDocument.applyEdits(source(text), edits) };
}

describe("diagnostics", () => {
  it("finds nothing in a sound recipe", () => {
    expect(diagnostics({ uri, path, text: sound }, nothing)).toEqual([]);
  });

  // case E4
  it("underlines a misspelt key and suggests the right one", () => {
    const message = /unknown key 'batch_sise'.*did you mean 'batch_size'/;
    const found = check(`${sound}rollout:\n  «batch_sise»: 4\n`, message);
    expect(found).toMatchObject({ severity: DiagnosticSeverity.Error, source: "molt-runner", code: "unknown-key" });
  });

  it("counts columns in UTF-16 units, after characters of two", () => {
    check(`${sound}rollout: { "max_turns": 2, «batch_sise»: 4 } # 🙂\n`, "batch_size");
    check(`${sound}run: { name: '«🙂»' }\n`.replace("'«🙂»'", "«'🙂'»"), "run.name");
  });

  it("underlines a value of the wrong type", () => {
    check(`${sound}rollout: { batch_size: «many» }\n`, /rollout\.batch_size/);
  });

  it("keeps the severity of a warning", () => {
    const found = check(`${sound}eval: { steps: «5» }\n`, /eval\.steps/);
    expect(found.severity).toBe(DiagnosticSeverity.Warning);
  });

  it("says where text stops being YAML", () => {
    const found = diagnostics({ uri, path, text: `${sound}rollout: { batch_size: 4\n` }, nothing);
    expect(found).toMatchObject([{ code: "syntax", severity: DiagnosticSeverity.Error }]);
  });

  it("reads a parent through the editor, and shows what is wrong there at `extends`", () => {
    const child = "extends: «base.yaml»\nrun: { name: sort }\n";
    const parent = (text: string) => workspaceOf({ "base.yaml": text });
    check(child, /batch_size/, parent(`${sound}rollout: { batch_sise: 4 }\n`));
    expect(diagnostics({ uri, path, text: child.replace(/[«»]/g, "") }, parent(sound))).toEqual([]);
  });

  it("leaves YAML alone that is no recipe", () => {
    const text = "services:\n  database: { imagee: x }\n";
    expect(diagnostics({ uri, path: "/project/compose.yaml", text }, nothing)).toEqual([]);
  });
});

describe("quick fixes", () => {
  it("repairs the misspelt key under the cursor", () => {
    const fixed = fix(`${sound}rollout:\n  batch_$0sise: 4\n`);
    expect(fixed?.text).toBe(`${sound}rollout:\n  batch_size: 4\n`);
    expect(fixed?.title).toContain("batch_size");
  });

  it("takes the cursor at either end of the key as on it", () => {
    expect(fix(`${sound}rollout: { $0batch_sise: 4 }\n`)?.text).toContain("batch_size: 4");
    expect(fix(`${sound}rollout: { batch_sise$0: 4 }\n`)?.text).toContain("batch_size: 4");
  });

  it("repairs one of two, and nothing where the cursor is elsewhere", () => {
    const text = "rollout: { batch_sise: 4 }\nrun: { s$0eeed: 1 }\n";
    expect(fix(sound + text)?.text).toBe(`${sound}rollout: { batch_sise: 4 }\nrun: { seed: 1 }\n`);
    expect(fix(`$0${sound}${text.replace("$0", "")}`)).toBeUndefined();
  });

  it.each([
    [
      "a key to the section that it lives in, on the line after its last",
      "rollout:\n  batch_size: 4 # small\nrun:\n  n_samples_per_prom$0pt: 2\n  seed: 1\n",
      "rollout:\n  batch_size: 4 # small\n  n_samples_per_prompt: 2\nrun:\n  seed: 1\n",
    ],
    [
      "out of braces, into braces",
      "rollout: { batch_size: 4 }\nrun: { n_samples_per_prom$0pt: 2, seed: 1 }\n",
      "rollout: { batch_size: 4, n_samples_per_prompt: 2 }\nrun: { seed: 1 }\n",
    ],
    [
      "the last of braces, into a section that there is not yet",
      "run: { seed: 1, n_samples_per_prom$0pt: 2 }\n",
      "run: { seed: 1 }\nrollout:\n  n_samples_per_prompt: 2\n",
    ],
    [
      "a key under the name that the Python original has for it",
      "vllm:\n  num_eng$0ines: 2\nrun: { seed: 1 }\n",
      "vllm:\nrun: { seed: 1 }\nengine:\n  count: 2\n",
    ],
    [
      "a key without a value",
      "run: { n_samples_per_prom$0pt, seed: 1 }\nrollout: { top_p: 1 }\n",
      "run: { seed: 1 }\nrollout: { top_p: 1, n_samples_per_prompt:  }\n",
    ],
    [
      "a dotted key, into sections in sections",
      "algo.kl.init_co$0ef: 0.1\nrun: { seed: 1 }\n",
      "run: { seed: 1 }\nalgo:\n  kl:\n    init_coef: 0.1\n",
    ],
  ])("moves %s", (_, text, expected) => {
    expect(fix(sound + text)?.text).toBe(sound + expected);
  });

  it("does not put keys below an alias", () => {
    expect(fix("x: &a { seed: 1 }\nrollout: *a\nrun: { n_samples_per_prom$0pt: 2, seed: 1 }\n")).toBeUndefined();
    expect(fix(`${sound}rollout:\nrun: { n_samples_per_prom$0pt: 2, seed: 1 }\n`)?.text).toBe(
      `${sound}rollout:\n  n_samples_per_prompt: 2\nrun: { seed: 1 }\n`,
    );
  });

  it("adds what is missing, with its section", () => {
    const withoutAgent = "actor: { model_name_or_path: model }\ndata: { prompt_dataset: prompts.jsonl }\n";
    expect(fix(`$0${withoutAgent}`)).toEqual({
      title: "Add 'train.agent_path'",
      text: `${withoutAgent}train:\n  agent_path: \n`,
    });
  });

  it("sets the nearest legal batch", () => {
    const fixed = fix(`${sound}rollout: { batch_size: 4, n_samples_per_prompt: $01 }\n`);
    expect(fixed?.text).toBe(`${sound}rollout: { batch_size: 4, n_samples_per_prompt: 2 }\n`);
  });
});

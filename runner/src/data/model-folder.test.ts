import { cpSync, mkdtempSync, readFileSync, rmSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeEach, describe, expect, it } from "vitest";
import type { RunnerError } from "../errors.ts";
import { copyModelFiles, exportHeader, readModelFolder } from "./model-folder.ts";
import { buildSafetensorsHeader, readSafetensorsHeader } from "./safetensors.ts";

const fixture = (name: string) => fileURLToPath(new URL(`fixtures/${name}`, import.meta.url));
const root = mkdtempSync(join(tmpdir(), "molt-model-"));
const folder = join(root, "model");
afterAll(() => rmSync(root, { recursive: true }));

beforeEach(() => {
  rmSync(folder, { recursive: true, force: true });
  cpSync(fixture("qwen3-tied"), folder, { recursive: true });
});

function failure(path = folder): RunnerError {
  try {
    readModelFolder(path, { weights: "required" });
  } catch (error) {
    return error as RunnerError;
  }
  throw new Error("no error");
}

function editConfig(changes: Record<string, unknown>): void {
  const file = join(folder, "config.json");
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, "utf8")), ...changes }));
}

/** Replaces the weights by zeros of these tensors. */
function writeWeights(tensors: { name: string; shape: number[] }[]): void {
  const header = buildSafetensorsHeader(tensors, {});
  const bytes = tensors.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 4), 0);
  writeFileSync(join(folder, "model.safetensors"), Buffer.concat([header, Buffer.alloc(bytes)]));
}

const parameters = () => readModelFolder(folder, { weights: "none" }).decoder.units.flatMap((unit) => unit.parameters);

describe("readModelFolder", () => {
  it("reads one file of bfloat16 with a tied head", () => {
    const { tensors, decoder, eosTokenIds } = readModelFolder(folder, { weights: "required" });
    expect(tensors).toHaveLength(24);
    expect(tensors[0]).toMatchObject({ name: "model.embed_tokens.weight", dtype: "BF16", shape: [40, 16] });
    expect(decoder.config.tieWordEmbeddings).toBe(true);
    expect(eosTokenIds).toEqual([5, 7]);
  });

  it("reads shards", () => {
    const { tensors } = readModelFolder(fixture("qwen3-sharded"), { weights: "required" });
    expect(new Set(tensors.map(({ file }) => file)).size).toBe(4);
    expect(tensors.at(-1)).toMatchObject({ name: "lm_head.weight", dtype: "F32", shape: [40, 16] });
  });

  it("reads no weights when none are asked for", () => {
    unlinkSync(join(folder, "model.safetensors"));
    expect(readModelFolder(folder, { weights: "none" }).tensors).toEqual([]);
  });

  it("takes end tokens from config.json where generation_config.json is silent", () => {
    unlinkSync(join(folder, "generation_config.json"));
    expect(readModelFolder(folder, { weights: "none" }).eosTokenIds).toEqual([5]);
    editConfig({ eos_token_id: null });
    expect(readModelFolder(folder, { weights: "none" }).eosTokenIds).toEqual([]);
    editConfig({ eos_token_id: "</s>" });
    expect(() => readModelFolder(folder, { weights: "none" })).toThrow(
      'eos_token_id is "</s>"; it must be a token id or a list of them',
    );
  });

  it("refuses what is not a model folder", () => {
    expect(failure(join(root, "absent")).message).toBe("this model folder does not exist");
    expect(failure(join(folder, "config.json")).message).toBe("this is a file, not a model folder");
    unlinkSync(join(folder, "config.json"));
    expect(failure().message).toBe(
      "this model folder has no config.json; it holds generation_config.json, model.safetensors",
    );
    writeFileSync(join(folder, "config.json"), "[]");
    expect(failure().message).toBe("this file is not a JSON object: not an object");
    writeFileSync(join(folder, "config.json"), '{"model_type": ');
    expect(failure().message).toMatch(/^this file is not a JSON object: /);
    expect(failure().position).toEqual({ file: join(folder, "config.json") });
  });

  it("names a folder without weights, what it holds, and the way to start without", () => {
    unlinkSync(join(folder, "model.safetensors"));
    expect(failure().format()).toBe(
      `${folder} this model folder holds no weights (model.safetensors or model.safetensors.index.json); ` +
        "it holds config.json, generation_config.json\n" +
        "  fix: put the weights there, or start from seeded random ones with `actor.init: random`",
    );
    expect(failure().exitCode).toBe(2);
  });

  it("names each tensor that does not fit, with the shape found and the shape wanted", () => {
    const tensors = parameters();
    const [embed, ...rest] = tensors;
    writeWeights([
      { ...embed!, shape: [41, 16] },
      ...rest.filter(({ name }) => name !== "model.norm.weight"),
      { name: "model.layers.2.mlp.up_proj.weight", shape: [24, 16] },
    ]);
    expect(failure().format()).toBe(
      `${folder} the weights do not fit config.json:\n` +
        "    model.embed_tokens.weight is [41, 16], config.json wants [40, 16]\n" +
        "    model.norm.weight [16] is missing\n" +
        "    model.layers.2.mlp.up_proj.weight is not a tensor of this model\n" +
        "  fix: take config.json and the weights from the same model",
    );
  });

  it("cuts a long list of misfits short", () => {
    editConfig({ hidden_size: 32 });
    const lines = failure().message.split("\n");
    expect(lines).toHaveLength(10);
    expect(lines[9]).toBe("    and 12 more");
  });

  it("ignores a tied head's copy and old rotary frequencies, but not an untied head's absence", () => {
    const extra = [
      { name: "lm_head.weight", shape: [40, 16] },
      { name: "model.layers.0.self_attn.rotary_emb.inv_freq", shape: [4] },
    ];
    writeWeights([...parameters(), ...extra]);
    expect(readModelFolder(folder, { weights: "required" }).tensors).toHaveLength(24);
    writeWeights(parameters());
    editConfig({ tie_word_embeddings: false });
    expect(failure().message).toContain("lm_head.weight [40, 16] is missing");
  });

  it("refuses dtypes that the native core does not read", () => {
    writeWeights(parameters());
    const file = join(folder, "model.safetensors");
    const text = readFileSync(file, "latin1").replace("F32", "I32");
    writeFileSync(file, text, "latin1");
    expect(failure().message).toBe(
      "the weights do not fit config.json:\n    model.embed_tokens.weight has dtype I32, not F32, BF16 or F16",
    );
  });

  it("refuses an index that points nowhere", () => {
    rmSync(folder, { recursive: true });
    cpSync(fixture("qwen3-sharded"), folder, { recursive: true });
    unlinkSync(join(folder, "model-00002-of-00004.safetensors"));
    expect(failure().message).toBe("1 of 4 weight files are missing: model-00002-of-00004.safetensors");
    writeFileSync(join(folder, "model.safetensors.index.json"), '{"weight_map": {"a": 1}}');
    expect(failure().message).toBe("weight_map is missing or not a map from tensors to files");
  });
});

describe("export", () => {
  it("lays tensors out in the units' order", () => {
    const { decoder } = readModelFolder(folder, { weights: "none" });
    const names = decoder.units.flatMap((unit) => unit.parameters.map(({ name }) => name));
    const header = exportHeader(decoder.units);
    writeFileSync(join(folder, "model.safetensors"), Buffer.concat([header, Buffer.alloc(4 * 4592)]));
    const read = readSafetensorsHeader(join(folder, "model.safetensors"));
    expect(read.metadata).toEqual({ format: "pt" });
    expect(read.entries.map(({ name }) => name)).toEqual(names);
    expect(readModelFolder(folder, { weights: "required" }).tensors).toHaveLength(24);
  });

  it("copies everything but the weights, and says float32", () => {
    editConfig({ torch_dtype: "bfloat16", extra: { kept: true } });
    writeFileSync(join(folder, "tokenizer.json"), "{}");
    const target = mkdtempSync(join(root, "export-"));
    copyModelFiles(folder, target);
    const config = JSON.parse(readFileSync(join(target, "config.json"), "utf8"));
    expect(config).toMatchObject({ dtype: "float32", model_type: "qwen3", extra: { kept: true } });
    expect(config).not.toHaveProperty("torch_dtype");
    expect(readFileSync(join(target, "tokenizer.json"), "utf8")).toBe("{}");
    expect(readModelFolder(target, { weights: "none" }).eosTokenIds).toEqual([5, 7]);
    expect(failure(target).message).toContain("holds no weights");
  });
});

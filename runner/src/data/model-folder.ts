/** Hugging Face model folders: `config.json`, safetensors, a tokenizer. */
import { copyFileSync, existsSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { TensorLocation, UnitDescription } from "molt-native";
import { fileError } from "../errors.ts";
import { indented, shorten } from "../lists.ts";
import { type Config, isObject, readConfig } from "./config-json.ts";
import { type Decoder, parametersOf, readDecoder } from "./decoder.ts";
import { buildSafetensorsHeader, readSafetensorsHeader, type SafetensorsEntry } from "./safetensors.ts";

export interface ModelFolder {
  path: string;
  configJson: Config;
  decoder: Decoder;
  /** The decoder's parameters in the units' order; empty where not asked for. */
  tensors: TensorLocation[];
  /** From `generation_config.json`, else `config.json`; may be empty. */
  eosTokenIds: number[];
}

const singleFile = "model.safetensors";
const indexFile = "model.safetensors.index.json";
const tokenizerFiles = [
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "vocab.json",
  "merges.txt",
  "tokenizer.model",
  "chat_template.jinja",
  "chat_template.json",
];

/** With `weights: "required"`, every tensor has its exact shape, or one error names all that is wrong. */
export function readModelFolder(path: string, { weights }: { weights: "required" | "none" }): ModelFolder {
  const file = join(path, "config.json");
  if (!existsSync(file)) {
    const found = statSync(path, { throwIfNoEntry: false });
    const empty = found?.isDirectory() && `this model folder has no config.json; it holds ${listing(path)}`;
    const why = empty || (found ? "this is a file, not a model folder" : "this model folder does not exist");
    throw fileError(path, why, "name a folder with config.json and model.safetensors");
  }
  const configJson = readConfig(file);
  const decoder = readDecoder(configJson, file);
  const tensors = weights === "required" ? locateTensors(path, decoder) : [];
  return { path, configJson, decoder, tensors, eosTokenIds: readEosTokenIds(path, configJson) };
}

function listing(path: string): string {
  const names = readdirSync(path).sort();
  return names.length === 0 ? "nothing" : shorten(names, 12);
}

function readEosTokenIds(path: string, configJson: Config): number[] {
  const file = join(path, "generation_config.json");
  const generation = existsSync(file) ? readConfig(file) : {};
  const value = generation.eos_token_id ?? configJson.eos_token_id ?? [];
  const ids = [value].flat();
  if (ids.every((id): id is number => Number.isInteger(id) && (id as number) >= 0)) return ids;
  const wrong = generation.eos_token_id == null ? join(path, "config.json") : file;
  throw fileError(wrong, `eos_token_id is ${JSON.stringify(value)}; it must be a token id or a list of them`);
}

function locateTensors(path: string, { units, config }: Decoder): TensorLocation[] {
  const found = new Map<string, SafetensorsEntry & { file: string }>();
  for (const file of weightFiles(path)) {
    for (const entry of readSafetensorsHeader(file).entries) found.set(entry.name, { ...entry, file });
  }
  const problems: string[] = [];
  const tensors: TensorLocation[] = [];
  for (const { name, shape } of parametersOf(units)) {
    const entry = found.get(name);
    found.delete(name);
    if (!entry) problems.push(`${name} ${shapeText(shape)} is missing`);
    else if (String(entry.shape) !== String(shape)) {
      problems.push(`${name} is ${shapeText(entry.shape)}, config.json wants ${shapeText(shape)}`);
    } else if (entry.dtype !== "F32" && entry.dtype !== "BF16" && entry.dtype !== "F16") {
      problems.push(`${name} has dtype ${entry.dtype}, not F32, BF16 or F16`);
    } else tensors.push({ name, file: entry.file, offset: entry.offset, dtype: entry.dtype, shape });
  }
  // A tied head's copy and old checkpoints' rotary frequencies repeat what is known.
  if (config.tieWordEmbeddings) found.delete("lm_head.weight");
  const unknown = [...found.keys()].filter((name) => !name.endsWith(".rotary_emb.inv_freq"));
  problems.push(...unknown.map((name) => `${name} is not a tensor of this model`));
  if (problems.length === 0) return tensors;
  const fix = "take config.json and the weights from the same model";
  throw fileError(path, `the weights do not fit config.json:${indented(problems, 8)}`, fix);
}

function shapeText(shape: number[]): string {
  return `[${shape.join(", ")}]`;
}

function weightFiles(path: string): string[] {
  const single = join(path, singleFile);
  if (existsSync(single)) return [single];
  const index = join(path, indexFile);
  if (!existsSync(index)) {
    const what = `this model folder holds no weights (${singleFile} or ${indexFile}); it holds ${listing(path)}`;
    throw fileError(path, what, "put the weights there, or start from seeded random ones with `actor.init: random`");
  }
  const { weight_map: map } = readConfig(index);
  if (!isObject(map) || !Object.values(map).every((name) => typeof name === "string")) {
    throw fileError(index, "weight_map is missing or not a map from tensors to files");
  }
  const files = [...new Set(Object.values(map) as string[])].sort();
  const absent = files.filter((name) => !existsSync(join(path, name)));
  if (absent.length > 0) {
    const what = `${absent.length} of ${files.length} weight files are missing: ${shorten(absent, 4)}`;
    throw fileError(index, what, "fetch the folder again, whole");
  }
  return files.map((name) => join(path, name));
}

/** `model.safetensors` as `Model.save` writes it: float32, in the units' order. */
export function exportHeader(units: UnitDescription[]): Uint8Array {
  return buildSafetensorsHeader(parametersOf(units), { format: "pt" });
}

/** All but the weights, for an export in float32. `target` exists. */
export function copyModelFiles(source: string, target: string): void {
  const { torch_dtype: _, ...configJson } = readConfig(join(source, "config.json"));
  writeFileSync(join(target, "config.json"), `${JSON.stringify({ ...configJson, dtype: "float32" }, null, 2)}\n`);
  for (const name of ["generation_config.json", ...tokenizerFiles]) {
    if (existsSync(join(source, name))) copyFileSync(join(source, name), join(target, name));
  }
}

/** Hugging Face model folders: `config.json`, safetensors, a tokenizer. */
import { copyFileSync, existsSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { ParameterDescription, TensorLocation, UnitDescription } from "molt-native";
import { fileError } from "../errors.ts";
import { indented, shorten } from "../lists.ts";
import { type Config, readConfig } from "./config-json.ts";
import { type Decoder, readDecoder } from "./decoder.ts";
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
  if (!existsSync(path) || !statSync(path).isDirectory()) {
    const why = existsSync(path) ? "this is a file, not a model folder" : "this model folder does not exist";
    throw fileError(path, why, "name a folder with config.json and model.safetensors");
  }
  if (!existsSync(join(path, "config.json"))) {
    throw fileError(
      path,
      `this model folder has no config.json; it holds ${listing(path)}`,
      "name the folder that holds config.json",
    );
  }
  const configJson = readConfig(join(path, "config.json"));
  const decoder = readDecoder(configJson, join(path, "config.json"));
  const tensors = weights === "required" ? locateTensors(path, decoder) : [];
  return { path, configJson, decoder, tensors, eosTokenIds: readEosTokenIds(path, configJson) };
}

function listing(path: string): string {
  const names = readdirSync(path).sort();
  return names.length === 0 ? "nothing" : shorten(names, 12);
}

function readEosTokenIds(path: string, configJson: Config): number[] {
  const generationFile = join(path, "generation_config.json");
  const generation = existsSync(generationFile) ? readConfig(generationFile) : {};
  const file = (generation.eos_token_id ?? null) === null ? join(path, "config.json") : generationFile;
  const value = generation.eos_token_id ?? configJson.eos_token_id ?? [];
  const ids = Array.isArray(value) ? value : [value];
  if (!ids.every((id) => Number.isInteger(id) && id >= 0)) {
    throw fileError(file, `eos_token_id is ${JSON.stringify(value)}; it must be a token id or a list of them`);
  }
  return ids;
}

function locateTensors(path: string, decoder: Decoder): TensorLocation[] {
  const found = new Map<string, SafetensorsEntry & { file: string }>();
  for (const file of weightFiles(path)) {
    for (const entry of readSafetensorsHeader(file).entries) found.set(entry.name, { ...entry, file });
  }
  const parameters = decoder.units.flatMap((unit) => unit.parameters);
  const problems: string[] = [];
  const tensors: TensorLocation[] = [];
  for (const { name, shape } of parameters) {
    const entry = found.get(name);
    if (!entry) problems.push(`${name} ${shapeText(shape)} is missing`);
    else if (String(entry.shape) !== String(shape)) {
      problems.push(`${name} is ${shapeText(entry.shape)}, config.json wants ${shapeText(shape)}`);
    } else if (entry.dtype !== "F32" && entry.dtype !== "BF16" && entry.dtype !== "F16") {
      problems.push(`${name} has dtype ${entry.dtype}, not F32, BF16 or F16`);
    } else tensors.push({ name, file: entry.file, offset: entry.offset, dtype: entry.dtype, shape });
  }
  problems.push(...unknownTensors([...found.keys()], parameters, decoder.config.tieWordEmbeddings));
  if (problems.length > 0) {
    throw fileError(
      path,
      `the weights do not fit config.json:${indented(problems, 8)}`,
      "take config.json and the weights from the same model",
    );
  }
  return tensors;
}

/** A tied head's copy and old checkpoints' rotary frequencies repeat what is known. */
function unknownTensors(names: string[], parameters: ParameterDescription[], tied: boolean): string[] {
  const known = new Set(parameters.map(({ name }) => name));
  if (tied) known.add("lm_head.weight");
  return names
    .filter((name) => !known.has(name) && !name.endsWith(".rotary_emb.inv_freq"))
    .map((name) => `${name} is not a tensor of this model`);
}

function shapeText(shape: number[]): string {
  return `[${shape.join(", ")}]`;
}

function weightFiles(path: string): string[] {
  const single = join(path, singleFile);
  if (existsSync(single)) return [single];
  const index = join(path, indexFile);
  if (!existsSync(index)) {
    throw fileError(
      path,
      `this model folder holds no weights (${singleFile} or ${indexFile}); it holds ${listing(path)}`,
      "put the weights there, or start from seeded random ones with `actor.init: random`",
    );
  }
  const map = readConfig(index).weight_map;
  if (typeof map !== "object" || map === null || Object.values(map).some((name) => typeof name !== "string")) {
    throw fileError(index, "weight_map is missing or not a map from tensors to files");
  }
  const files = [...new Set(Object.values(map as Record<string, string>))].sort();
  const absent = files.filter((name) => !existsSync(join(path, name)));
  if (absent.length > 0) {
    throw fileError(
      index,
      `${absent.length} of ${files.length} weight files are missing: ${shorten(absent, 4)}`,
      "fetch the folder again, whole",
    );
  }
  return files.map((name) => join(path, name));
}

/** `model.safetensors` as `Model.save` writes it: float32, in the units' order. */
export function exportHeader(units: UnitDescription[]): Uint8Array {
  return buildSafetensorsHeader(
    units.flatMap((unit) => unit.parameters),
    { format: "pt" },
  );
}

/** All but the weights, for an export in float32. `target` exists. */
export function copyModelFiles(source: string, target: string): void {
  const { torch_dtype: _, ...configJson } = readConfig(join(source, "config.json"));
  writeFileSync(join(target, "config.json"), `${JSON.stringify({ ...configJson, dtype: "float32" }, null, 2)}\n`);
  for (const name of ["generation_config.json", ...tokenizerFiles]) {
    if (existsSync(join(source, name))) copyFileSync(join(source, name), join(target, name));
  }
}

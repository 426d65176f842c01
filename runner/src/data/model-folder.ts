/** A Hugging Face model folder: `config.json`, weights in safetensors, a tokenizer. Read before anything native. */
import { copyFileSync, existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { ParameterDescription, TensorLocation, UnitDescription } from "molt-native";
import { messageOf, usageError } from "../errors.ts";
import { type Decoder, readDecoder } from "./decoder.ts";
import { buildSafetensorsHeader, readSafetensorsHeader, type SafetensorsEntry } from "./safetensors.ts";

export interface ModelFolder {
  path: string;
  configJson: Record<string, unknown>;
  decoder: Decoder;
  /** One for each parameter of the decoder, in the units' order; empty where weights were not asked for. */
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

/** With `weights: "required"`, every tensor is there with its exact shape, or one error names all that is wrong. */
export function readModelFolder(path: string, { weights }: { weights: "required" | "none" }): ModelFolder {
  if (!existsSync(path) || !statSync(path).isDirectory()) {
    const why = existsSync(path) ? "this is a file, not a model folder" : "this model folder does not exist";
    throw usageError(why, { position: { file: path }, fix: "name a folder with config.json and model.safetensors" });
  }
  if (!existsSync(join(path, "config.json"))) {
    throw usageError(`this model folder has no config.json; it holds ${listing(path)}`, {
      position: { file: path },
      fix: "name the folder that holds config.json",
    });
  }
  const configJson = readJson(join(path, "config.json"));
  const decoder = readDecoder(configJson, join(path, "config.json"));
  const tensors = weights === "required" ? locateTensors(path, decoder) : [];
  return { path, configJson, decoder, tensors, eosTokenIds: readEosTokenIds(path, configJson) };
}

function listing(path: string): string {
  const names = readdirSync(path).sort();
  return names.length === 0 ? "nothing" : shorten(names, 12);
}

function shorten(items: string[], most: number): string {
  const more = items.length - most;
  return items.slice(0, most).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

function readJson(file: string): Record<string, unknown> {
  try {
    const value = JSON.parse(readFileSync(file, "utf8"));
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("not an object");
    return value;
  } catch (error) {
    throw usageError(`this file is not a JSON object: ${messageOf(error)}`, { position: { file } });
  }
}

function readEosTokenIds(path: string, configJson: Record<string, unknown>): number[] {
  const generationFile = join(path, "generation_config.json");
  const generation = existsSync(generationFile) ? readJson(generationFile) : {};
  const file = (generation.eos_token_id ?? null) === null ? join(path, "config.json") : generationFile;
  const value = generation.eos_token_id ?? configJson.eos_token_id ?? [];
  const ids = Array.isArray(value) ? value : [value];
  if (!ids.every((id) => Number.isInteger(id) && id >= 0)) {
    throw usageError(`eos_token_id is ${JSON.stringify(value)}; it must be a token id or a list of them`, {
      position: { file },
    });
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
    throw usageError(
      `the weights do not fit config.json:\n    ${problems.slice(0, 8).join("\n    ")}${
        problems.length > 8 ? `\n    and ${problems.length - 8} more` : ""
      }`,
      { position: { file: path }, fix: "take config.json and the weights from the same model" },
    );
  }
  return tensors;
}

/** What no unit reads. A tied head's copy and the rotary frequencies of old checkpoints repeat what is known. */
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
    throw usageError(`this model folder holds no weights (${singleFile} or ${indexFile}); it holds ${listing(path)}`, {
      position: { file: path },
      fix: "put the weights there, or start from seeded random ones with `actor.init: random`",
    });
  }
  const map = readJson(index).weight_map;
  if (typeof map !== "object" || map === null || Object.values(map).some((name) => typeof name !== "string")) {
    throw usageError("weight_map is missing or not a map from tensors to files", { position: { file: index } });
  }
  const files = [...new Set(Object.values(map as Record<string, string>))].sort();
  const absent = files.filter((name) => !existsSync(join(path, name)));
  if (absent.length > 0) {
    throw usageError(`${absent.length} of ${files.length} weight files are missing: ${shorten(absent, 4)}`, {
      position: { file: index },
      fix: "fetch the folder again, whole",
    });
  }
  return files.map((name) => join(path, name));
}

/** Header of an exported `model.safetensors`: float32, in the units' order, as `Model.save` writes it. */
export function exportHeader(units: UnitDescription[]): Uint8Array {
  return buildSafetensorsHeader(
    units.flatMap((unit) => unit.parameters),
    { format: "pt" },
  );
}

/** Everything of a model folder but its weights, for an export in float32. `target` exists. */
export function copyModelFiles(source: string, target: string): void {
  const { torch_dtype: _, ...configJson } = readJson(join(source, "config.json"));
  writeFileSync(join(target, "config.json"), `${JSON.stringify({ ...configJson, dtype: "float32" }, null, 2)}\n`);
  for (const name of ["generation_config.json", ...tokenizerFiles]) {
    if (existsSync(join(source, name))) copyFileSync(join(source, name), join(target, name));
  }
}

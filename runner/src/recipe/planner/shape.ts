import { basename, join } from "node:path";
import { type Config, positive, unsupported } from "../../data/config-json.ts";
import { fileError, messageOf } from "../../errors.ts";
import { knownModels } from "./known-models.ts";

/** What the planner needs of a decoder. Its parameters are counts of values, biases and norms included. */
export type ModelShape = ReturnType<typeof shapeOf> & {
  /** Parameters of the reference, where that is another model. */
  reference?: number;
};
export type ReadFile = (path: string) => string | undefined;

/**
 * From `config.json` in `folder` alone. A folder without one is planned as the model of recipes/models/ whose name its
 * own starts with. Throws a usage error for a file that is no config, another family, and an unknown name.
 */
export function readModelShape(folder: string, readFile: ReadFile): ModelShape {
  const file = join(folder, "config.json");
  const text = readFile(file);
  if (text !== undefined) return shapeOf(parse(text, file), file);
  const name = basename(folder).toLowerCase();
  const known = Object.keys(knownModels).find((model) => name.startsWith(model.toLowerCase()));
  if (known !== undefined) return shapeOf(knownModels[known]!, `recipes/models/${known}.json`);
  const fix = `name a folder with a config.json, or one called after ${Object.keys(knownModels).join(", ")}`;
  throw fileError(folder, "there is no config.json, and the folder's name is no known model's", fix);
}

function parse(text: string, file: string): Config {
  try {
    return Object(JSON.parse(text));
  } catch (error) {
    throw fileError(file, `this file is not JSON: ${messageOf(error)}`);
  }
}

const families = ["llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3"];

type Count = (key: string, otherwise?: number) => number;

function shapeOf(config: Config, file: string) {
  const family = String(config.model_type);
  if (!families.includes(family)) {
    const found = `model_type is ${JSON.stringify(config.model_type)}`;
    unsupported(found, `the planner knows ${families.join(", ")}`, file);
  }
  const count: Count = (key, otherwise) =>
    positive({ ...config, [key]: config[key] ?? otherwise }, key, file, Number.isInteger);
  const [layers, hidden, heads] = [count("num_hidden_layers"), count("hidden_size"), count("num_attention_heads")];
  const vocabulary = count("vocab_size");
  const attention = family === "deepseek_v3" ? latent(config, count) : grouped(config, count);
  const mixture = readMixture(config, count, file);
  const { experts, expertsPerToken, expertLayers, expertWidth, sharedWidth } = mixture;
  const denseWidth = expertLayers < layers ? count("intermediate_size") : 0;
  const dense = 3 * hidden * denseWidth + (config.mlp_bias === true ? 2 * denseWidth + hidden : 0);
  // Beside its routed experts, a mixture has shared ones and a router.
  const beside = 3 * hidden * sharedWidth + experts * hidden;
  const common = attention.projections + 2 * hidden;
  const routed = expertLayers * experts * 3 * hidden * expertWidth;
  const head = vocabulary * hidden;
  // Input embeddings, which no token is multiplied with, unless they are the head too.
  const embedding = config.tie_word_embeddings === true ? 0 : head;
  const others = layers * common + (layers - expertLayers) * dense + expertLayers * beside + hidden;
  const unrouted = embedding + head + others;
  // As families publish it: both embedding tables, and of the routed experts a token's own.
  const active = unrouted + (experts === 0 ? 0 : (routed / experts) * expertsPerToken);
  // The largest without its routed experts.
  const layer = common + Math.max(dense, beside);
  const parameters = { total: unrouted + routed, active, experts: routed, layer, embedding };
  // The widest that a token passes in one layer.
  const feedForward = Math.max(denseWidth, expertsPerToken * expertWidth + sharedWidth);
  return { family, layers, hidden, heads, vocabulary, feedForward, parameters, ...attention, ...mixture };
}

/**
 * Values of a layer's projections; query-key and value width of a head; values that the cache keeps of a token in a
 * layer, and the most devices that they can be divided over.
 */
function grouped(config: Config, count: Count) {
  const [hidden, heads] = [count("hidden_size"), count("num_attention_heads")];
  const isQwen3 = String(config.model_type).startsWith("qwen3");
  const kvHeads = count("num_key_value_heads", heads);
  const head = count("head_dim", isQwen3 ? 128 : Math.floor(hidden / heads));
  const qkv = (heads + 2 * kvHeads) * head;
  const hasBias = config.attention_bias === true;
  const biases = (hasBias || config.model_type === "qwen2" ? qkv : 0) + (hasBias ? hidden : 0);
  const projections = hidden * (qkv + heads * head) + biases + (isQwen3 ? 2 * head : 0);
  const cache = { values: 2 * kvHeads * head, shards: kvHeads };
  return { projections, headWidths: { key: head, value: head }, cache };
}

/** Multi-head latent attention (DeepSeek-V2 report, section 2.1): the cache holds one latent and one rotary key. */
function latent(config: Config, count: Count) {
  const [hidden, heads] = [count("hidden_size"), count("num_attention_heads")];
  const [width, rotary] = [count("kv_lora_rank"), count("qk_rope_head_dim")];
  const [plain, value] = [count("qk_nope_head_dim"), count("v_head_dim")];
  const key = plain + rotary;
  const rank = config.q_lora_rank === null ? 0 : count("q_lora_rank");
  const queries = rank === 0 ? hidden * heads * key : rank * (hidden + 1 + heads * key);
  const cached = hidden * (width + rotary) + width * (1 + heads * (plain + value));
  const projections = queries + cached + heads * value * hidden;
  return { projections, headWidths: { key, value }, cache: { values: width + rotary, shards: 1 } };
}

/** All 0 in a dense model. The shared experts' width is of all of them together. */
function readMixture(config: Config, count: Count, file: string) {
  const isLatent = config.model_type === "deepseek_v3";
  const none = { experts: 0, expertsPerToken: 0, expertLayers: 0, expertWidth: 0, sharedWidth: 0 };
  if (!["qwen3_moe", "mixtral", "deepseek_v3"].includes(String(config.model_type))) return none;
  const orZero = (key: string) => (Number(config[key] ?? 0) === 0 ? 0 : count(key));
  const [layers, first] = [count("num_hidden_layers"), orZero("first_k_dense_replace")];
  const every = count("decoder_sparse_step", 1);
  const dense = new Set(Array.isArray(config.mlp_only_layers) ? config.mlp_only_layers : []);
  const replaced = [...dense].filter((layer) => layer >= first && layer < layers && (layer + 1) % every === 0).length;
  // Layers are numbered from 0; of each `every` the last is a mixture.
  const expertLayers = Math.max(0, Math.floor(layers / every) - Math.floor(first / every) - replaced);
  const named = config.num_experts === undefined ? "num_local_experts" : "num_experts";
  const experts = count(isLatent ? "n_routed_experts" : named);
  const expertsPerToken = count("num_experts_per_tok");
  if (expertsPerToken > experts) unsupported(`num_experts_per_tok is ${expertsPerToken}`, `at most ${experts}`, file);
  const expertWidth = count(config.model_type === "mixtral" ? "intermediate_size" : "moe_intermediate_size");
  return { experts, expertsPerToken, expertLayers, expertWidth, sharedWidth: expertWidth * orZero("n_shared_experts") };
}

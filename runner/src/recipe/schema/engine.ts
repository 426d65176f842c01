import { key, positiveInteger, section } from "./key.ts";

export const engine = section("The engines that sample.", {
  count: key(positiveInteger, 1, { description: "Engine processes.", unit: "engines" }),
  max_num_seqs: key(positiveInteger, 256, {
    description: "Sequences decoded at once by one engine.",
    unit: "sequences",
  }),
  page_size: key(positiveInteger, 16, {
    description: "Tokens that a page of the key/value cache holds.",
    unit: "tokens",
  }),
  cache_tokens: key(positiveInteger.nullable(), null, {
    description: "Tokens that the key/value cache holds; null is room for max_num_seqs sequences of data.max_len.",
    unit: "tokens",
  }),
});

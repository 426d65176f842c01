// `npm run test:agents`: installs real SDKs and agents and runs the tier.
import { fileURLToPath } from "node:url";
import { endWithTier } from "../tier.mjs";
import { install } from "./install.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

await endWithTier(import.meta.url, {
  install,
  clients: here("clients"),
  tokenizer: here("../../src/data/fixtures/bytelevel"),
  only: process.argv[2] ?? "",
});

// `npm run test:chaos [-- SECONDS [SEED]]`: runs the tier; 180 s of kills unless told otherwise.
import { fileURLToPath } from "node:url";
import { endWithTier } from "../tier.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

const [seconds = "180", seed = String(Date.now() % 100_000)] = process.argv.slice(2);
await endWithTier(import.meta.url, {
  cli: process.env.MOLT_CLI ?? here("../../dist/cli.js"),
  recipes: here("../../../recipes"),
  agent: here("agent.ts"),
  seconds: Number(seconds),
  seed: Number(seed),
});

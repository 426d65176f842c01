// `npm run test:distributed [-- PATTERN]`: runs the tier, or the checks whose names match.
import { fileURLToPath } from "node:url";
import { endWithTier } from "../tier.mjs";

process.env.MOLT_CLI ??= fileURLToPath(new URL("../../dist/cli.js", import.meta.url));
await endWithTier(import.meta.url, new RegExp(process.argv[2] ?? ""));

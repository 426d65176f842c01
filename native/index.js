// Loads the addon that the set-up built for exactly these sources. `index.d.ts` is the contract.
import { createRequire } from "node:module";
import { addonPath } from "./setup/locate.mjs";

const addon = createRequire(import.meta.url)(addonPath());

export const { Tensor, ProcessGroup, Model, AdamW, Sampler, scope, memory, setThreads, versions } = addon;
export const { recordCollectives, serveUniqueId } = addon;

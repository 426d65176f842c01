/** What code says of recipes and runs, parsed and never executed: the language server and `context` read it here. */
export { CodeIndex, type CodeLocation, type CodeName, type CodePlace } from "./code-index.ts";
export { type CodeMap, type CodeSource, codeMap } from "./code-map.ts";
export { type CodeContext, type ContextQuery, codeContext, roomsOf } from "./context.ts";
export { type CodeFile, CodeFolder } from "./folder.ts";
export { type CodeKind, registryKinds } from "./mentions.ts";
export { codeSources } from "./shipped.ts";

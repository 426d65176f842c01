// A bundle of its own (build.mjs): loaded with the first question of an assistant.
export { Client } from "@modelcontextprotocol/client";
export { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

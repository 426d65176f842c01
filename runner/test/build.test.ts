import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { build, type Plugin } from "esbuild";
import { expect, it } from "vitest";
import type { ChatTemplate } from "../src/data/chat-template.ts";
import { root } from "./tree.ts";

interface Chat {
  messages: Parameters<ChatTemplate["render"]>[0];
  tools: [] | null;
  addGenerationPrompt: boolean;
  text: string;
}

it("the bundled template engine renders what the Python originals give", async () => {
  const path = pathToFileURL(join(root, "runner/build.mjs")).href;
  const { fastTemplates } = (await import(/* @vite-ignore */ path)) as { fastTemplates: Plugin };
  const folder = mkdtempSync(join(tmpdir(), "molt-build-"));
  try {
    const outfile = join(folder, "template.mjs");
    const entry = join(root, "runner/src/data/chat-template.ts");
    const { metafile } = await build({
      entryPoints: [entry],
      outfile,
      bundle: true,
      metafile: true,
      platform: "node",
      format: "esm",
      plugins: [fastTemplates],
    });
    expect(Object.keys(metafile.inputs).filter((name) => name.startsWith("fast-templates:"))).toHaveLength(1);
    const bundle = (await import(/* @vite-ignore */ pathToFileURL(outfile).href)) as {
      ChatTemplate: typeof ChatTemplate;
    };
    const vectors = JSON.parse(readFileSync(join(root, "runner/src/data/fixtures/vectors.json"), "utf8"));
    const model = join(root, "runner/src/data/fixtures/bytelevel/tokenizer_config.json");
    const template = new bundle.ChatTemplate(JSON.parse(readFileSync(model, "utf8")).chat_template, model, {});
    const chats: Chat[] = vectors.bytelevel.chats;
    expect(chats.length).toBeGreaterThan(3);
    for (const { messages, text, tools, addGenerationPrompt } of chats) {
      expect(template.render(messages, { tools: tools ?? undefined, addGenerationPrompt })).toBe(text);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

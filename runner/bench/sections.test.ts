import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { keptSections, writeSection } from "./sections.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-sections-"));
const page = join(folder, "speed.md");
afterAll(() => rmSync(folder, { recursive: true }));

it("replaces its own section alone, and keeps all when the page is written anew", () => {
  writeFileSync(page, "# Speed\n\ntable\n");
  writeSection(page, "sync", "## Sync\n\n1 s\n");
  writeSection(page, "train", "## Train\n\n2 s\n");
  writeSection(page, "sync", "## Sync\n\n3 s\n");
  const sections =
    "\n<!-- begin sync -->\n## Sync\n\n3 s\n<!-- end sync -->\n" +
    "\n<!-- begin train -->\n## Train\n\n2 s\n<!-- end train -->\n";
  expect(readFileSync(page, "utf8")).toBe(`# Speed\n\ntable\n${sections}`);
  expect(keptSections(page)).toBe(sections);
  expect(keptSections(join(folder, "none.md"))).toBe("");
});

/** The benchmark as a real process, at its smallest. */
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, it } from "vitest";

const output = mkdtempSync(join(tmpdir(), "molt-bench-"));
afterAll(() => rmSync(output, { recursive: true, force: true }));

async function bench(...args: string[]): Promise<{ code: number | null; errors: string }> {
  const main = fileURLToPath(new URL("main.mjs", import.meta.url));
  const child = spawn(process.execPath, [main, ...args], { stdio: ["ignore", "ignore", "pipe"] });
  const closed = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { errors: await text(child.stderr), code: await closed };
}

describe("npm run bench -- --smoke", () => {
  it("measures both sides of every case and writes the table and the picture", async () => {
    const { code, errors } = await bench("--smoke", "--output", output);
    expect(code, errors).toBe(0);
    const page = readFileSync(join(output, "speed.md"), "utf8");
    expect(page).toMatch(/\| float32, batch 2, 1 thread \| transformers \| [\d.]+ \| [\d.]+ \| \*\*[\d.]+\*\* \(/);
    expect(page).toMatch(
      /\| bfloat16, 2 rows of 16, 1 thread, layers kept \| transformers \| [\d.]+ \| [\d.]+ \| \*\*[\d.]+\*\* \(/,
    );
    expect(page).toMatch(/\| molt-runner check \| node -e 0 \| [\d.]+ \| [\d.]+ \| \*\*[\d.]+\*\* \(/);
    expect(page).toContain("| not run: a smoke run leaves TRL out |");
    expect(page).toMatch(/torch 2\.\d+\.\d+.*, transformers \d/);
    expect(readFileSync(join(output, "speed.svg"), "utf8")).toContain("</svg>");
  });

  it("refuses an unknown case, and writes nothing", async () => {
    const { code, errors } = await bench("--only", "trian", "--output", join(output, "none"));
    expect(code).toBe(2);
    expect(errors).toContain("--only: there is no 'trian', only decode, train, rl, start");
    expect(existsSync(join(output, "none"))).toBe(false);
  });
});

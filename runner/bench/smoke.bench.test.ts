/** Benchmarks as real processes, at their smallest. */
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, it } from "vitest";

const output = mkdtempSync(join(tmpdir(), "molt-bench-"));
afterAll(() => rmSync(output, { recursive: true, force: true }));

async function start(script: string, ...args: string[]) {
  const main = fileURLToPath(new URL(script, import.meta.url));
  const child = spawn(process.execPath, [main, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const closed = new Promise<number | null>((resolve) => child.once("close", resolve));
  const [output, errors] = await Promise.all([text(child.stdout), text(child.stderr)]);
  return { output, errors, code: await closed };
}

describe("npm run bench -- --smoke", () => {
  it("measures both sides of every case and writes the table and the picture", async () => {
    const { code, errors } = await start("main.mjs", "--smoke", "--output", output);
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
    const { code, errors } = await start("main.mjs", "--only", "trian", "--output", join(output, "none"));
    expect(code).toBe(2);
    expect(errors).toContain("--only: there is no 'trian', only decode, train, rl, start");
    expect(existsSync(join(output, "none"))).toBe(false);
  });
});

it("npm run bench:train -- --smoke: both models beside their peer, and on two ranks", async () => {
  const { code, output, errors } = await start("train.mjs", "--smoke");
  expect(code, errors).toBe(0);
  for (const kind of ["dense", "mixture"]) {
    expect(output).toMatch(
      new RegExp(`\\| ${kind}, float32, 2 rows of 16.* \\| [\\d.]+ \\| [\\d.]+ \\| \\*\\*[\\d.]+`),
    );
    expect(output).toMatch(new RegExp(`\\| ${kind}, rank 1 \\| \\d+% \\| \\d+% \\| \\d+% \\|`));
  }
});

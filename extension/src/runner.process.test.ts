import { mkdtempSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it, vi } from "vitest";
import { runVerb, verbText } from "./runner.ts";

vi.mock("vscode", () => ({}));

const cwd = realpathSync(mkdtempSync(join(tmpdir(), "molt ünder ")));
afterAll(() => rmSync(cwd, { recursive: true }));
/** A runner whose verbs are scripts. */
const scripts = { command: [process.execPath, "-e"], cwd };

it("gives a verb its words as they are, in its folder, and says what came of it", async () => {
  const script = "console.log(JSON.stringify([process.cwd(), ...process.argv.slice(1)])); process.exitCode = 3";
  const { code, stdout } = await runVerb(scripts, [script, "a b", "$HOME", "'ü\""]);
  expect([code, JSON.parse(stdout)]).toEqual([3, [cwd, "a b", "$HOME", "'ü\""]]);
  await expect(verbText(scripts, ["console.error('error no such key'); process.exitCode = 2"])).rejects.toThrow(
    /^no such key$/,
  );
});

it("says why a verb could not be run, or was ended", async () => {
  const absent = { command: [join(cwd, "no-node")], cwd };
  await expect(runVerb(absent, ["check"])).rejects.toThrow(/molt-runner check, by .*no-node: spawn .* ENOENT/);
  const forever = "setInterval(() => {}, 1000)";
  await expect(runVerb(scripts, [forever], { timeoutS: 0.2 })).rejects.toThrow("was ended after 0.2 s");
  const flood = "process.stdout.write('x'.repeat(70 << 20))";
  await expect(runVerb(scripts, [flood])).rejects.toThrow("maxBuffer");
  let cancel = () => {};
  const onCancellationRequested = (ask: () => void) => {
    cancel = ask;
    return { dispose() {} };
  };
  const token = { isCancellationRequested: false, onCancellationRequested };
  const running = runVerb(scripts, [forever], { token: token as never });
  token.isCancellationRequested = true;
  cancel();
  await expect(running).rejects.toThrow("is not waited for any more");
});

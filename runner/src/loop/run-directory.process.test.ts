import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { expect, it } from "vitest";
import { isAlive, until } from "../../test/processes.ts";
import { ownerOf } from "./run-directory.ts";

// As a container's first process that reaps nobody leaves them.
it("a run whose process is dead, and noticed by nobody, has no owner", async () => {
  const folder = mkdtempSync(join(tmpdir(), "owner-"));
  const parent = spawn("sh", ["-c", "sleep 60 & echo $!; exec sleep 60"]);
  try {
    const pid = Number(String((await once(parent.stdout, "data"))[0]));
    const start = () => readFileSync(`/proc/${pid}/stat`, "utf8").split(" ")[21];
    writeFileSync(join(folder, "owner.pid"), `${pid} ${start()}`);
    expect(ownerOf(folder)).toBe(pid);
    process.kill(pid, "SIGKILL");
    await until("its end", () => !isAlive(pid));
    expect(start()).toBeDefined(); // it is still there
    expect(ownerOf(folder)).toBeNull();
  } finally {
    parent.kill("SIGKILL");
    rmSync(folder, { recursive: true });
  }
});

it("of many that go on with a run at the same moment one gets it, though a dead one's name is in the way", async () => {
  const folder = mkdtempSync(join(tmpdir(), "owner-"));
  try {
    for (const file of ["events.ndjson", "recipe.yaml"]) writeFileSync(join(folder, file), "");
    const script = join(folder, "open.mjs");
    const contents = `import { RunDirectory } from "./run-directory.ts";
      process.stdin.once("data", () => {
        try { RunDirectory.open(${JSON.stringify(folder)}); console.log("held"); }
        catch (error) { console.log(error.message); }
        process.stdin.once("data", () => process.exit());
      });
      console.log("ready");`;
    const stdin = { contents, resolveDir: fileURLToPath(new URL(".", import.meta.url)) };
    await build({ stdin, bundle: true, platform: "node", format: "esm", outfile: script });
    for (let round = 0; round < 3; round++) {
      const many = Array.from({ length: 8 }, () =>
        spawn(process.execPath, [script], { stdio: ["pipe", "pipe", "inherit"] }),
      );
      const hear = () => Promise.all(many.map(async ({ stdout }) => String((await once(stdout, "data"))[0]).trim()));
      const tell = () => many.map(({ stdin }) => stdin.write("go\n"));
      await hear();
      tell();
      const said = await hear();
      expect(said.filter((text) => text === "held")).toHaveLength(1);
      expect(said.filter((text) => /^run owner-\w+ is at work in process \d+$/.test(text))).toHaveLength(7);
      // Killed, it leaves its name to the next round.
      const ended = many.map((child) => once(child, "exit"));
      for (const child of many) child.kill("SIGKILL");
      await Promise.all(ended);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
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

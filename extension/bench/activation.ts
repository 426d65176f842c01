// How long the extension's own `activate()` takes in a real VS Code, as its log says, over several windows.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { prepareChromium } from "../test/chromium.ts";
import { eventually } from "../test/driver.ts";
import { type Installed, install } from "../test/install.ts";

// This module is bundled into `dist/`.
const repository = fileURLToPath(new URL("../../..", import.meta.url));
const numWindows = 10;

export async function benchActivation(): Promise<void> {
  const create = await prepareChromium();
  const root = await mkdtemp(join(tmpdir(), "molt-editor-bench-"));
  try {
    const installed = await install(repository, root);
    const driver = create(installed, process.env);
    try {
      await driver.start();
      for (let opened = 1; opened <= numWindows; opened++) {
        await driver.open(join(installed.home, "language"));
        await eventually(() => activations(installed).length >= opened, "the extension's log");
        await driver.leave();
      }
    } finally {
      await driver.stop();
    }
    const times = activations(installed).sort((one, other) => one - other);
    const median = times[Math.floor(times.length / 2)];
    console.log(`activate() in ${times.length} windows: median ${median} ms, worst ${times.at(-1)} ms`);
    console.log(`.vsix: ${kilobytes(installed.vsix)} kB; bundles:`);
  } finally {
    await rm(root, { recursive: true, force: true, maxRetries: 5 });
  }
  const dist = join(repository, "extension", "dist");
  for (const name of readdirSync(dist).filter((file) => file.endsWith("js"))) {
    console.log(`  ${name.padEnd(20)} ${kilobytes(join(dist, name)).padStart(6)} kB`);
  }
}

const kilobytes = (path: string) => (statSync(path).size / 1000).toFixed(0);

/** Milliseconds, of each window so far. */
function activations({ userData }: Installed): number[] {
  const logs = join(userData, "logs");
  const files = readdirSync(logs, { recursive: true, encoding: "utf8" }).filter((file) =>
    /Molt Runner\.log$/.test(file),
  );
  const text = files.map((file) => readFileSync(join(logs, file), "utf8")).join("\n");
  return [...text.matchAll(/activated in (\d+) ms/g)].map(([, time]) => Number(time));
}

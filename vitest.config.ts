import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const scale = Number(process.env.MOLT_DEADLINE_SCALE ?? 1);
const shared = {
  exclude: ["**/node_modules/**", "**/dist/**"],
  testTimeout: 60_000 * scale,
  hookTimeout: 60_000 * scale,
  // Threads that spin for one another, on cores that the tests share, make steps a hundred times as long.
  env: { OMP_NUM_THREADS: "1", OMP_WAIT_POLICY: "passive" },
  expect: { poll: { timeout: 20_000 * scale } },
};

/**
 * Tests that start processes or hold ports are `*.process.test.ts`: they run after the others, one file at a time.
 * Those that run benchmarks at their smallest, `*.bench.test.ts`, are `npm run test:bench`.
 */
export default defineConfig({
  test: {
    projects: [
      {
        test: {
          ...shared,
          name: "unit",
          include: ["{runner,native,lsp,extension}/**/*.test.ts"],
          exclude: [...shared.exclude, "**/*.{process,bench}.test.ts"],
          maxWorkers: 2,
          sequence: { groupOrder: 0 },
        },
      },
      {
        test: {
          ...shared,
          name: "process",
          include: ["{runner,native,lsp,extension}/**/*.process.test.ts"],
          fileParallelism: false,
          // Started from source, the runner's own processes are the built ones.
          env: { ...shared.env, MOLT_CLI: fileURLToPath(new URL("runner/dist/cli.js", import.meta.url)) },
          testTimeout: 300_000 * scale,
          hookTimeout: 120_000 * scale,
          sequence: { groupOrder: 1 },
        },
      },
      {
        test: {
          ...shared,
          name: "bench",
          include: ["runner/bench/*.bench.test.ts"],
          fileParallelism: false,
          testTimeout: 300_000 * scale,
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
});

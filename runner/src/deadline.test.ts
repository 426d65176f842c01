import { expect, it, vi } from "vitest";
import { deadlineMs } from "./deadline.ts";

it("stretches a deadline, to what a timer can wait for at most", () => {
  vi.stubEnv("MOLT_DEADLINE_SCALE", "100");
  expect(deadlineMs(1.5)).toBe(150_000);
  // A day, stretched: Node's timers take an int32 of milliseconds, and fire at once beyond.
  expect(deadlineMs(86_400)).toBe(2_147_483_647);
  vi.unstubAllEnvs();
});

import { expect, it, onTestFinished, vi } from "vitest";
import type { GroupRecord } from "./shards.ts";
import { bindingOf, StepClock } from "./step-time.ts";

const records = [
  { group: { rollouts: [{ timings: { seconds: 5, modelSeconds: 4 } }, { timings: { seconds: 3, modelSeconds: 1 } }] } },
] as unknown as GroupRecord[];

it("tells where the seconds between two steps went, by the trainer's parts and by what goes on beside it", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const clock = new StepClock();
  const after = (seconds: number) => new Promise<void>((resolve) => setTimeout(resolve, seconds * 1000));
  const pass = (seconds: number) => vi.advanceTimersByTimeAsync(seconds * 1000);
  // Two groups, of 4 s and of 6 s, 2 s later: engines and agents are at work for 8 s. The second outlasts the step.
  clock.generate(after(4));
  clock.measure("wait", after(4));
  await pass(2);
  clock.generate(after(6));
  await pass(2);
  clock.measure("train", after(3));
  await pass(3);
  const failing = clock.measure(
    "sync",
    after(0.5).then(() => Promise.reject(new Error("it failed"))),
  );
  await Promise.all([expect(failing).rejects.toThrow("it failed"), pass(0.5)]);
  expect(clock.take(records)).toEqual({ step: 7.5, wait: 4, train: 3, sync: 0.5, generate: 7.5, model: 5, agent: 3 });
  await pass(1);
  expect(clock.take([])).toEqual({ step: 1, generate: 0.5 });
});

it.each([
  [{ wait: 3, train: 2, sync: 1, model: 9, agent: 4 }, "engine"],
  [{ wait: 3, train: 2, sync: 1, model: 4, agent: 9 }, "agent"],
  [{ wait: 1, train: 2, sync: 1, model: 4, agent: 9 }, "trainer"],
  [{ wait: 1, train: 1, sync: 3, generate: 5 }, "sync"],
  [{ wait: 1, train: 1, sync: 1, eval: 2 }, "eval"],
])("%o is bound by %s", (seconds, binding) => {
  expect(bindingOf(seconds)).toBe(binding);
});

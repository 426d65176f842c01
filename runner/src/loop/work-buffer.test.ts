import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Group } from "../agents/types.ts";
import { WorkBuffer } from "./work-buffer.ts";

const group = (groupId: string, admittedVersion: number): Group => ({
  groupId,
  promptId: groupId,
  epoch: 0,
  admittedVersion,
  attempt: 0,
  rollouts: [],
  failed: [],
});

function bufferOf(batchSize: number, maxStaleness: number, morePrompts = () => true): WorkBuffer {
  return new WorkBuffer({ batchSize, maxStaleness, maxInFlight: null, morePrompts });
}

describe("admission", () => {
  // t + floor(L / B) - p <= S, by hand: with t = p = 0 the largest L admitted over is (S + 1) B - 1.
  it.each([
    [4, 0, 4],
    [4, 1, 8],
    [4, 2, 12],
    [1, 3, 4],
  ])("batch %i and staleness %i hold %i live groups before the first version", (batchSize, staleness, most) => {
    const buffer = bufferOf(batchSize, staleness);
    let admitted = 0;
    while (buffer.hasRoom()) buffer.admit(`g${admitted++}`, 0);
    expect(admitted).toBe(most);
  });

  it("opens again only when the engines have the new version", () => {
    const buffer = bufferOf(2, 0);
    for (const id of ["a", "b"]) buffer.admit(id, 0);
    for (const id of ["a", "b"]) buffer.finish(group(id, 0));
    const decision = buffer.nextBatch();
    expect(decision.kind).toBe("batch");
    expect(buffer.hasRoom()).toBe(false); // strictly on-policy: nothing in flight while training
    buffer.trainerVersion = 1;
    for (const name of ["a", "b"]) buffer.remove(name);
    expect(buffer.hasRoom()).toBe(false);
    buffer.engineVersion = 1;
    expect(buffer.hasRoom()).toBe(true);
  });
});

describe("batches", () => {
  it("waits for a group that the next batch could no longer take, to that group's deadline", () => {
    const buffer = bufferOf(2, 0);
    buffer.admit("slow", 1234);
    buffer.admit("quick", 5678);
    buffer.finish(group("quick", 0));
    expect(buffer.nextBatch()).toEqual({ kind: "wait", deadlineAt: 1234, blockedBy: ["slow"] });
    expect(buffer.overdue(1233)).toEqual([]);
    expect(buffer.overdue(1234)).toEqual(["slow"]);
  });

  it("passes over a slow group that the next batch can still take", () => {
    const buffer = bufferOf(1, 1);
    buffer.admit("slow", 0);
    buffer.admit("quick", 0);
    buffer.finish(group("quick", 0));
    expect(buffer.nextBatch()).toEqual({ kind: "batch", groups: [group("quick", 0)] });
  });

  it("trains the remainder as a short batch and then ends", () => {
    const buffer = bufferOf(4, 1, () => false);
    buffer.admit("last", 0);
    expect(buffer.nextBatch().kind).toBe("wait");
    buffer.finish(group("last", 0));
    expect(buffer.nextBatch()).toEqual({ kind: "batch", groups: [group("last", 0)] });
    buffer.remove("last");
    expect(buffer.nextBatch()).toEqual({ kind: "end" });
  });

  it("never trains a group older than the bound, whatever finishes when", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 4 }),
        fc.integer({ min: 0, max: 3 }),
        fc.array(fc.nat({ max: 1000 }), { minLength: 200, maxLength: 200 }),
        (batchSize, staleness, choices) => {
          const buffer = bufferOf(batchSize, staleness);
          const running: Group[] = [];
          const ages: number[] = [];
          let next = 0;
          for (const choice of choices) {
            while (buffer.hasRoom()) {
              const id = `g${next++}`;
              running.push(group(id, buffer.engineVersion));
              buffer.admit(id, 0);
            }
            const [finished] = running.splice(choice % running.length, 1);
            buffer.finish(finished!);
            for (let decision = buffer.nextBatch(); decision.kind === "batch"; decision = buffer.nextBatch()) {
              ages.push(...decision.groups.map((one) => buffer.trainerVersion - one.admittedVersion));
              buffer.trainerVersion += 1;
              for (const { groupId } of decision.groups) buffer.remove(groupId);
              buffer.engineVersion = buffer.trainerVersion;
            }
          }
          expect(ages.length).toBeGreaterThan(0);
          expect(Math.max(...ages)).toBeLessThanOrEqual(staleness);
        },
      ),
    );
  });
});

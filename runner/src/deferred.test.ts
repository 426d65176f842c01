import { expect, test } from "vitest";
import { deferred, failure } from "./deferred.ts";

test("a promise ends as the one who holds its ends says", async () => {
  const one = deferred<number>();
  one.resolve(3);
  expect(await one.promise).toBe(3);
  const other = deferred();
  other.reject(new Error("no"));
  await expect(other.promise).rejects.toThrow("no");
});

test("a failure that nobody waits for yet is kept until somebody does", async () => {
  const { promise, reject } = failure();
  reject(new Error("it broke"));
  await new Promise((resolve) => setImmediate(resolve));
  await expect(Promise.race([promise, new Promise(() => {})])).rejects.toThrow("it broke");
});

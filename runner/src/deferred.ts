export interface Deferred<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: unknown) => void;
}

/** A promise with both its ends in hand: `Promise.withResolvers`, which Node 20 lacks. */
export function deferred<T = void>(): Deferred<T> {
  let ends!: Pick<Deferred<T>, "resolve" | "reject">;
  const promise = new Promise<T>((resolve, reject) => {
    ends = { resolve, reject };
  });
  return { promise, ...ends };
}

/** One that only ever rejects, to be raced with: a rejection that nobody waits for yet is no fault. */
export function failure(): { promise: Promise<never>; reject: (error: unknown) => void } {
  const { promise, reject } = deferred<never>();
  promise.catch(() => {});
  return { promise, reject };
}

import { RunnerError } from "./errors.ts";

/** Every wait has a deadline that names what it waited for. `MOLT_DEADLINE_SCALE` stretches all (slow machines). */
export function deadlineMs(seconds: number): number {
  // A timer that is told to wait longer than an int32 has milliseconds does not wait at all.
  return Math.min(seconds * 1000 * Number(process.env.MOLT_DEADLINE_SCALE ?? 1), 2 ** 31 - 1);
}

export class DeadlineError extends RunnerError {}

/** Resolves as `promise` does, or rejects after `seconds` with a `DeadlineError` that names `what`, as it is then. */
export async function withDeadline<T>(promise: Promise<T>, seconds: number, what: string | (() => string)): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const named = () => (typeof what === "string" ? what : what());
    const fail = () => reject(new DeadlineError(`waited ${seconds} s for ${named()}`));
    timer = setTimeout(fail, deadlineMs(seconds));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

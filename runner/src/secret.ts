import { createHash, timingSafeEqual } from "node:crypto";

/** Whether a stranger knows the secret, told in constant time whatever the lengths. */
export function sameSecret(given: string, secret: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(given), digest(secret));
}

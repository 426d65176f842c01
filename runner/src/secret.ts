import { createHash, timingSafeEqual } from "node:crypto";

/** What the environment keeps under a name that says secret, as JSON writes it. */
const secrets = Object.entries(process.env)
  .filter(([name, value = ""]) => /(KEY|TOKEN|SECRET|PASSWORD)$/i.test(name) && value.length >= 8)
  .map(([, value]) => JSON.stringify(value).slice(1, -1));

/** JSON without the environment's secrets, which errors of libraries and programs like to quote. */
export function withoutSecrets(json: string): string {
  return secrets.reduce((text, secret) => text.replaceAll(secret, "***"), json);
}

/** Whether a stranger knows the secret, told in constant time whatever the lengths. */
export function sameSecret(given: string, secret: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(given), digest(secret));
}

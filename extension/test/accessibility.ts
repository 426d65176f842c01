import type { Frame } from "playwright-core";
import { seriousViolations } from "./page-alone.ts";

/** Throws with each serious or critical thing that axe-core finds wrong with a webview's document. */
export async function checkAccessible(frame: Frame): Promise<void> {
  const violations = await seriousViolations(frame);
  if (violations.length > 0) throw new Error(`it shuts readers out:\n${violations.join("\n")}`);
}

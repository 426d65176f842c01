import { messageOf } from "../src/errors.ts";

/** Of a tier's checks: a line each, then how many passed. */
export class Tally {
  passed = 0;
  failed = 0;
  skipped = 0;

  /** `body` may resolve with what is to be said of it. */
  async check(name: string, body: () => unknown): Promise<void> {
    const startedAt = performance.now();
    let result: "passed" | "failed" = "passed";
    let said = "";
    try {
      const detail = await body();
      if (typeof detail === "string") said = `: ${detail}`;
    } catch (error) {
      result = "failed";
      said = `\n${error instanceof Error ? error.stack : messageOf(error)}`;
    }
    this[result]++;
    console.log(`${result}   ${name} (${((performance.now() - startedAt) / 1000).toFixed(1)} s)${said}`);
  }

  /** None at all is a failure too. */
  get end(): { code: number; line: string } {
    const { passed, failed, skipped } = this;
    const code = failed > 0 || passed + skipped === 0 ? 1 : 0;
    return { code, line: `${passed} passed, ${failed} failed, ${skipped} skipped` };
  }
}

import { ExitCode } from "../errors.ts";

/** Before anything starts: the addon is there for these sources, else a SetupError. It is not loaded here. */
export async function requireAddon(): Promise<void> {
  const { ensureAddon } = await import("molt-native/setup/setup.mjs");
  await ensureAddon();
}

export async function setupCommand(options: { native: boolean; tests: boolean; remove: boolean }): Promise<number> {
  const { setup, removeCaches } = await import("molt-native/setup/setup.mjs");
  if (options.remove) removeCaches();
  else await setup(options);
  return ExitCode.done;
}

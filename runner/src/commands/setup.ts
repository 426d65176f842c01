import { ExitCode, messageOf, RunnerError, usageError } from "../errors.ts";

/** What `native/setup/setup.mjs` exports; it is plain JavaScript, because it runs before any package is there. */
export interface NativeSetup {
  setup(options: { native: boolean; tests: boolean }): Promise<void>;
  removeCaches(): void;
  doctorReport(): SetupReport;
}

export interface SetupReport {
  tools: { name: string; version: string | null; command: string | null; needs: string }[];
  torch: { version: string; path: string | null };
  addon: { path: string | null; present: boolean };
  python: { path: string; present: boolean };
  cache: { path: string; entries: { path: string; bytes: number }[] };
}

/** By a name that TypeScript does not follow: the module has no types. */
export async function loadNativeSetup(module = "molt-native/setup/setup.mjs"): Promise<NativeSetup> {
  return import(module);
}

/** Before anything starts: the addon is there for these sources. It is not loaded here. */
export async function requireAddon(module = "molt-native/setup/locate.mjs"): Promise<void> {
  const { addonPath } = await import(module);
  try {
    addonPath();
  } catch (error) {
    throw usageError(messageOf(error));
  }
}

export async function setupCommand(options: { native: boolean; tests: boolean; remove: boolean }): Promise<number> {
  const { setup, removeCaches } = await loadNativeSetup();
  try {
    if (options.remove) removeCaches();
    else await setup(options);
  } catch (error) {
    if (error instanceof Error && error.name === "SetupError")
      throw new RunnerError(messageOf(error), { cause: error });
    throw error;
  }
  return ExitCode.done;
}

export interface SetupOptions {
  /** Build the addon too. Default true. */
  native?: boolean;
  /** Prepare the Python oracle of the tests too. Default false. */
  tests?: boolean;
  /** Receives one line a phase. Default: standard error. */
  log?: (line: string) => void;
}

/** Brings everything up to date; what is already is only looked at. Rejects with a SetupError of locate.mjs. */
export function setup(options?: SetupOptions): Promise<void>;

/** The addon is there when this resolves: an installed package sets it up on first use, a checkout says how. */
export function ensureAddon(log?: (line: string) => void): Promise<void>;

export interface DoctorReport {
  /** `version` is null where the tool is missing or too old for `needs`. */
  tools: { name: string; version: string | null; command: string | null; needs: string }[];
  torch: { version: string; path: string | null };
  addon: { path: string | null; present: boolean };
  python: { path: string; present: boolean };
  cache: { path: string; entries: { path: string; bytes: number }[] };
}

/** Tools, versions, what is set up and what the cache holds; starts and changes nothing. */
export function doctorReport(): DoctorReport;

/** Removes what set-up and tests keep outside the checkout, a line for each. */
export function removeCaches(log?: (line: string) => void): void;

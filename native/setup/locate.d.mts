/** An error with its fix, as the command line prints it. */
export class SetupError extends Error {
  constructor(message: string, fix?: string);
}
/** Pinned release of libtorch. */
export const torchVersion: string;
/** `MOLT_CACHE`, else `molt-runner` in the user's cache folder. */
export function cacheDirectory(): string;
/** Python of the private environment. With `setup --tests` it imports torch, numpy, transformers and tokenizers. */
export function pythonPath(): string;
/** The folder with libtorch's `include/` and `lib/`, or null before it is installed. */
export function torchDirectory(): string | null;
/** Where the addon for exactly these sources, this libtorch and this machine lies once built. */
export function addonLocation(): string;
/** The built addon; throws a SetupError where there is none for these sources. */
export function addonPath(): string;
/** Folders of the headers that a build with CUDA and NCCL takes; null for one for the CPU. Throws a SetupError. */
export function cudaBuild(torch?: string | null): string[] | null;

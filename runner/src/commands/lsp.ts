/**
 * The language server over stdio, until its client says `exit` or leaves. The build puts it beside the command line as
 * a bundle of its own, so that no other verb pays for it.
 */
export async function lspCommand(): Promise<never> {
  await import(new URL("./server.cjs", import.meta.url).href);
  return new Promise(() => {});
}

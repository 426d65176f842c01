// Bundles a program beside the caller that is no part of the product: Node 20 reads no TypeScript.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

/** `names` without `.ts`, from the caller's folder into its `dist/`. @param {string} caller its `import.meta.url` */
export const bundleBeside = (caller, ...names) => bundleWith({}, caller, ...names);

/** `more`: further options of esbuild. */
export async function bundleWith(more, caller, ...names) {
  const here = (path) => fileURLToPath(new URL(path, caller));
  await build({
    entryPoints: names.map((name) => here(`${name}.ts`)),
    outdir: here("dist"),
    bundle: true,
    packages: "external",
    platform: "node",
    format: "esm",
    target: "node20",
    ...more,
    logLevel: "warning",
  });
}

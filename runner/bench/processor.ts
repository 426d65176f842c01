import { existsSync, readFileSync } from "node:fs";

/** Those of x86 that decide which kernels run. */
const decisiveFlags = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"];

export function processorFlags(): string[] {
  const info = existsSync("/proc/cpuinfo") ? readFileSync("/proc/cpuinfo", "utf8") : "";
  const flags = new Set(info.match(/^flags\s*:(.*)$/m)?.[1]?.split(" "));
  return decisiveFlags.filter((flag) => flags.has(flag));
}

/** Without, bfloat16 is computed number by number, on either side. */
export function hasBfloat16(): boolean {
  return processorFlags().some((flag) => flag.endsWith("_bf16")) || process.arch === "arm64";
}

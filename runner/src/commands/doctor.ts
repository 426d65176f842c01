import type { DoctorReport } from "molt-native/setup/setup.mjs";
import { ExitCode, messageOf } from "../errors.ts";

interface AddonState {
  loads: boolean;
  /** libtorch's version, or why the addon does not load. */
  detail: string;
}

/** Says which tools, caches and parts are there. Exit code 1 where training would not start. */
export async function doctorCommand({ json }: { json: boolean }): Promise<number> {
  const report = (await import("molt-native/setup/setup.mjs")).doctorReport();
  const addon = await loadAddon();
  const platform = `${process.platform} ${process.arch}`;
  if (json) console.log(JSON.stringify({ ...report, platform, addon: { ...report.addon, ...addon } }));
  else console.log([`platform  ${platform}`, ...lines(report, addon)].join("\n"));
  return addon.loads ? ExitCode.done : ExitCode.failed;
}

async function loadAddon(): Promise<AddonState> {
  try {
    const { torch, cuda } = (await import("molt-native")).versions();
    return { loads: true, detail: `libtorch ${torch}${cuda ? " with CUDA" : ", CPU"}` };
  } catch (error) {
    return { loads: false, detail: messageOf(error).split("\n")[0]! };
  }
}

function lines({ tools, torch, python, cache }: DoctorReport, addon: AddonState): string[] {
  const setUp = "molt-runner setup";
  return [
    ...tools.map(({ name, version, command, needs }) =>
      version === null ? `missing   ${name}: needs ${needs}` : `tool      ${name} ${version} (${command})`,
    ),
    torch.path === null ? `missing   libtorch ${torch.version}: ${setUp}` : `libtorch  ${torch.version} ${torch.path}`,
    python.present ? `python    ${python.path}` : `missing   private Python environment: ${setUp}`,
    addon.loads ? `addon     loads: ${addon.detail}` : `missing   native addon: ${addon.detail}\n  fix: ${setUp}`,
    `cache     ${cache.path}${cache.entries.length > 0 ? " (molt-runner setup --remove)" : " is empty"}`,
    ...cache.entries.map(({ path, bytes }) => `          ${megabytes(bytes)} ${path}`),
  ];
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`.padStart(10);
}

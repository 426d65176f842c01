import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { cudaBuild } from "molt-native/setup/locate.mjs";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

let root: string;
const torch = () => join(root, "torch");

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "molt-cuda-"));
  // No toolkit of this machine.
  vi.stubEnv("PATH", "");
  vi.stubEnv("CUDA_HOME", undefined);
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(root, { recursive: true });
});

function put(...paths: string[]): void {
  for (const path of paths) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), "");
  }
}

/** A CUDA wheel of torch and those that it depends on, as pip lays them out. */
function putWheels(): void {
  put("torch/lib/libtorch_cuda.so", "nvidia/nccl/include/nccl.h", "nvidia/cu13/include/cuda_runtime_api.h");
  put(...["cublas_v2.h", "cusparse.h", "cusolverDn.h"].map((name) => `nvidia/cu13/include/${name}`));
}

describe("cudaBuild", () => {
  it("takes the wheels' headers and a toolkit's", () => {
    putWheels();
    put("toolkit/include/crt/host_defines.h", "toolkit/include/nv/target");
    vi.stubEnv("MOLT_DEVICE", "cuda");
    vi.stubEnv("CUDA_HOME", join(root, "toolkit"));
    const folders = ["nvidia/cu13/include", "nvidia/nccl/include", "toolkit/include"];
    expect(cudaBuild(torch())).toEqual(folders.map((folder) => join(root, folder)));
    vi.stubEnv("CUDA_HOME", undefined);
    put("toolkit/bin/nvcc");
    vi.stubEnv("PATH", join(root, "toolkit/bin"));
    expect(cudaBuild(torch())?.length).toBe(3);
  });

  it("builds for the CPU when told so, whatever is there", () => {
    putWheels();
    put("nvidia/cu13/include/crt/host_defines.h", "nvidia/cu13/include/nv/target");
    vi.stubEnv("MOLT_DEVICE", "cpu");
    expect(cudaBuild(torch())).toBeNull();
  });

  it("says what is missing where CUDA was asked for", () => {
    vi.stubEnv("MOLT_DEVICE", "cuda");
    expect(() => cudaBuild(torch())).toThrow("MOLT_DEVICE=cuda, but libtorch_cuda.so is missing");
    putWheels();
    expect(() => cudaBuild(torch())).toThrow("MOLT_DEVICE=cuda, but crt/host_defines.h, nv/target is missing");
  });
});

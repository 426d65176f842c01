import { execFile } from "node:child_process";
import { deadlineMs } from "../deadline.ts";
import type { Recipe } from "../recipe/schema.ts";

/** Whether a recipe's devices are GPUs: it names one, or nothing and the set-up is for CUDA. */
export function wantsGpus({ run }: Recipe): boolean {
  return run.device === "auto" ? process.env.MOLT_DEVICE === "cuda" : run.device !== "cpu";
}

/** GPUs that processes here may use, as CUDA_VISIBLE_DEVICES names them: those it lists, else nvidia-smi's. */
export function visibleGpus(): Promise<string[]> {
  const given = process.env.CUDA_VISIBLE_DEVICES;
  if (given !== undefined) return Promise.resolve(given.split(",").filter((name) => name !== "" && name !== "-1"));
  const ask = ["--query-gpu=index", "--format=csv,noheader"];
  return new Promise((resolve) => {
    execFile("nvidia-smi", ask, { timeout: deadlineMs(20) }, (error, output) => {
      resolve(error ? [] : output.split("\n").filter((line) => line !== ""));
    });
  });
}

/** Of a process that gets these of them, counted from 0; without GPUs nothing is to be said. */
export function deviceEnvironment(gpus: string[], devices: number[]): Record<string, string> {
  if (gpus.length === 0) return {};
  return { CUDA_VISIBLE_DEVICES: devices.map((device) => gpus[device % gpus.length]).join(",") };
}

import { totalmem } from "node:os";

/** One kind of device, from its maker's datasheet: dense rates, without sparsity; links in one direction. */
export interface Device {
  name: string;
  /** Operations a second of matmuls, by the bytes of a value: bf16, float32. */
  flops: { 2: number; 4: number };
  /** Bytes, of the device and of its node's host. */
  memory: number;
  hostMemory: number;
  /** Bytes a second: of its memory, to the devices of its node, to other nodes, to its host. */
  bandwidth: { memory: number; node: number; network: number; host: number };
  perNode: number;
  source: string;
}

type Four = [number, number, number, number];

/** In TFLOPS (bf16, float32), in gigabytes (device, host), which of memory are binary, and in gigabytes a second. */
function device(name: string, [bf16, float32, own, host]: Four, links: Four, source: string): Device {
  const [memory, node, network, toHost] = links.map((rate) => rate * 1e9) as Four;
  const flops = { 2: bf16 * 1e12, 4: float32 * 1e12 };
  const bandwidth = { memory, node, network, host: toHost };
  return { name, flops, memory: own * 2 ** 30, hostMemory: host * 2 ** 30, bandwidth, perNode: 8, source };
}

/** A DGX node has a port of 400 Gb/s for each device; of 200 Gb/s with A100, which is taken for L40S too. */
const gpus = [
  device("H100", [989, 67, 80, 2048], [3350, 450, 50, 64], "NVIDIA H100 (SXM5) and DGX H100 datasheets"),
  device("H200", [989, 67, 141, 2048], [4800, 450, 50, 64], "NVIDIA H200 (SXM5) and DGX H200 datasheets"),
  device("B200", [2250, 75, 180, 2048], [8000, 900, 50, 64], "NVIDIA DGX B200 datasheet, an eighth"),
  device("A100", [312, 19.5, 80, 2048], [2039, 300, 25, 32], "NVIDIA A100 (SXM4, 80 GB) and DGX A100 datasheets"),
  // With error correction, which is on, 45 of its 48 GB are there.
  device("L40S", [362, 91.6, 45, 1024], [864, 32, 25, 32], "NVIDIA L40S datasheet (PCIe 4)"),
];
const ram = totalmem() / 2 ** 30;
/** A process of one thread, which no datasheet has: two AVX-512 units do 64 float32 operations a cycle, AMX more. */
const cpu = device("CPU", [0.5, 0.16, ram, ram], [18, 2, 1, 18], "a thread with AVX-512; this machine's memory");

/** `auto` is this machine's, which without native code is known to have a CPU. */
export function deviceOf(name: string): Device {
  return gpus.find((gpu) => gpu.name === name) ?? cpu;
}

/**
 * What part of a datasheet's rate a whole run reaches, once for all devices and models. Set from three published steps
 * of asynchronous GRPO on H100 (NeMo RL 0.4, docs/about/performance-summary.md: Llama-3.1-8B, Qwen3-32B and
 * Qwen3-30B-A3B, "1-step off"); docs/planner.md has all points beside the estimates, and what was seen when.
 */
export const reached = {
  matmul: 0.4,
  /** The experts' grouped matmuls, with routing, sorting and unequal loads. */
  experts: 0.1,
  attention: 0.4,
  link: 0.5,
  /** Memory bandwidth, in decoding and in the optimizer. */
  memory: 0.8,
};

/** Seconds beside arithmetic and bytes: launches, waits, bookkeeping. */
export const overhead = {
  /** A pass of one microbatch through a layer, and what experts add, whose counts the host waits for. */
  layer: 0.2e-3,
  expertLayer: 1.8e-3,
  /** A decoding step of an engine, and a sequence in it. */
  decode: 2e-3,
  sequence: 0.08e-3,
  /** Latency of an all-reduce, within a node and between nodes. */
  allReduce: { node: 20e-6, network: 100e-6 },
};

/** A drafted token's chance to be taken (DeepSeek-V3 technical report, section 5.4.3: 85 to 90%). */
export const draftTaken = 0.85;

/** Mean row over `data.max_len` where `data.mean_len` does not say: the published runs lie between 0.26 and 0.78. */
export const meanShare = 0.6;

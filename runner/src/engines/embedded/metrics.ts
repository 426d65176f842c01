import { Counter, Gauge, Histogram, Registry } from "prom-client";
import type { Scheduler } from "./scheduler.ts";

const reasons = ["stop", "length", "abort", "error"] as const;
const latencyBuckets = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680];
const firstTokenBuckets = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
];

/** One scheduler's, under vLLM's names and labels (reference: vllm.md, section 5). */
export function createMetrics(scheduler: Scheduler, modelName: string): Registry {
  const registry = new Registry();
  registry.setDefaultLabels({ model_name: modelName, engine: "0" });
  addState([registry], scheduler);
  addRequests([registry], scheduler);
  return registry;
}

function addState(registers: Registry[], scheduler: Scheduler): void {
  const gauge = (name: string, help: string, read: () => number) => {
    const metric: Gauge = new Gauge({ name: `vllm:${name}`, help, registers, collect: () => metric.set(read()) });
  };
  gauge("num_requests_running", "Requests in the running batch.", () => scheduler.numRunning);
  gauge("num_requests_waiting", "Requests waiting to be processed.", () => scheduler.numWaiting);
  gauge("kv_cache_usage_perc", "Share of the key/value cache in use, 0 to 1.", () => scheduler.cacheUsage);
  const total = (name: string, help: string, read: () => number) => {
    const collect = () => {
      metric.reset();
      metric.inc(read());
    };
    const metric: Counter = new Counter({ name: `vllm:${name}_total`, help, registers, collect });
  };
  total("prefix_cache_queries", "Tokens looked for in the prefix cache.", () => scheduler.prefixes.queries);
  total("prefix_cache_hits", "Tokens found in the prefix cache.", () => scheduler.prefixes.hits);
  total("num_preemptions", "Requests that gave their pages back and started over.", () => scheduler.preemptions);
}

function addRequests(registers: Registry[], scheduler: Scheduler): void {
  const counter = (name: string, help: string, labelNames: string[] = []) =>
    new Counter({ name: `vllm:${name}_total`, help, labelNames, registers });
  const promptTokens = counter("prompt_tokens", "Prompt tokens of requests that have ended.");
  const generatedTokens = counter("generation_tokens", "Tokens generated for requests that have ended.");
  const ended = counter("request_success", "Requests that have ended, by reason.", ["finished_reason"]);
  for (const finished_reason of reasons) ended.inc({ finished_reason }, 0);
  const histogram = (name: string, help: string, buckets: number[]) =>
    new Histogram({ name: `vllm:${name}`, help, buckets, registers });
  const first = "Time from a request's arrival to its first token.";
  const last = "Time from a request's arrival to its last token.";
  const firstToken = histogram("time_to_first_token_seconds", first, firstTokenBuckets);
  const latency = histogram("e2e_request_latency_seconds", last, latencyBuckets);
  scheduler.observer = {
    firstToken: (seconds) => firstToken.observe(seconds),
    finished: ({ params, output }, seconds) => {
      latency.observe(seconds);
      promptTokens.inc(params.prompt.length);
      generatedTokens.inc(output.tokenIds.length);
      ended.inc({ finished_reason: output.finish ?? "error" });
    },
  };
}

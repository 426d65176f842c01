import { Counter, Gauge, Histogram, Registry } from "prom-client";
import type { Scheduler, SequenceOutput } from "./scheduler.ts";

const reasons = ["stop", "length", "abort", "error"] as const;
const latencyBuckets = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680];
const firstTokenBuckets = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
];

/** Prometheus metrics under vLLM's names and labels (reference: vllm.md, section 5), of one scheduler. */
export class Metrics {
  readonly contentType: string;
  private readonly registry = new Registry();

  constructor(scheduler: Scheduler, modelName: string) {
    this.contentType = this.registry.contentType;
    this.registry.setDefaultLabels({ model_name: modelName, engine: "0" });
    this.addGauges(scheduler);
    const count = this.addCounters(scheduler);
    const firstToken = this.histogram(
      "time_to_first_token_seconds",
      "Time from a request's arrival to its first token.",
      firstTokenBuckets,
    );
    const latency = this.histogram(
      "e2e_request_latency_seconds",
      "Time from a request's arrival to its last token.",
      latencyBuckets,
    );
    scheduler.observer = {
      firstToken: (seconds) => firstToken.observe(seconds),
      finished: (sequence, seconds) => {
        latency.observe(seconds);
        count(sequence.params.prompt.length, sequence.output);
      },
    };
  }

  /** In Prometheus' text format. */
  text(): Promise<string> {
    return this.registry.metrics();
  }

  private addGauges(scheduler: Scheduler): void {
    const gauge = (name: string, help: string, read: () => number) =>
      new Gauge({
        name: `vllm:${name}`,
        help,
        registers: [this.registry],
        collect() {
          this.set(read());
        },
      });
    gauge("num_requests_running", "Requests in the running batch.", () => scheduler.numRunning);
    gauge("num_requests_waiting", "Requests waiting to be processed.", () => scheduler.numWaiting);
    gauge("kv_cache_usage_perc", "Share of the key/value cache in use, 0 to 1.", () => scheduler.cacheUsage);
  }

  private addCounters(scheduler: Scheduler): (promptTokens: number, output: SequenceOutput) => void {
    const counter = (name: string, help: string, read: () => number) =>
      new Counter({
        name: `vllm:${name}_total`,
        help,
        registers: [this.registry],
        collect() {
          this.reset();
          this.inc(read());
        },
      });
    let prompts = 0;
    let generated = 0;
    counter("prompt_tokens", "Prompt tokens of requests that have ended.", () => prompts);
    counter("generation_tokens", "Tokens generated for requests that have ended.", () => generated);
    counter("prefix_cache_queries", "Tokens looked for in the prefix cache.", () => scheduler.prefixes.queries);
    counter("prefix_cache_hits", "Tokens found in the prefix cache.", () => scheduler.prefixes.hits);
    counter("num_preemptions", "Requests that gave their pages back and started over.", () => scheduler.preemptions);
    const success = new Counter({
      name: "vllm:request_success_total",
      help: "Requests that have ended, by reason.",
      labelNames: ["finished_reason"],
      registers: [this.registry],
    });
    const byReason = Object.fromEntries(
      reasons.map((finished_reason) => [finished_reason, success.labels({ finished_reason })]),
    );
    for (const reason of reasons) byReason[reason]!.inc(0);
    return (promptTokens, output) => {
      prompts += promptTokens;
      generated += output.tokenIds.length;
      byReason[output.finish ?? "error"]!.inc();
    };
  }

  private histogram(name: string, help: string, buckets: number[]): Histogram {
    return new Histogram({ name: `vllm:${name}`, help, buckets, registers: [this.registry] });
  }
}

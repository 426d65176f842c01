import { once } from "node:events";
import { createServer } from "node:http";
import { visible } from "../views/lines.ts";
import type { Sink } from "./index.ts";

/** Serves the newest figures as `GET /metrics`, in Prometheus' text format. */
export async function openPrometheus(host: string, port: number): Promise<Sink> {
  const newest = new Map<string, number>();
  const server = createServer(({ url }, response) => {
    if (url !== "/metrics") return response.writeHead(404).end();
    const lines = [...newest].map(([name, value]) => `molt{name=${JSON.stringify(visible(name))}} ${value}\n`);
    response.setHeader("content-type", "text/plain; version=0.0.4; charset=utf-8");
    response.end(["# HELP molt Newest figure of the run, by name.\n# TYPE molt gauge\n", ...lines].join(""));
  });
  server.listen(port, host);
  await once(server, "listening");
  return {
    take(_, scalars) {
      if (scalars) newest.set("step", scalars.step);
      for (const [name, value] of Object.entries(scalars?.values ?? {})) newest.set(name, value);
    },
    async close() {
      server.close().closeAllConnections();
    },
  };
}

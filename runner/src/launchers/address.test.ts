import { describe, expect, it } from "vitest";
import { addressTowards, isLoopback } from "./address.ts";

describe("isLoopback", () => {
  it("knows a URL's hosts that mean this machine alone", () => {
    const hosts = ["127.0.0.1", "127.1.2.3", "localhost", "[::1]", "10.0.0.5", "node7", "127.0.0.1.example.org"];
    const parsed = hosts.map((host) => new URL(`http://${host}:8000`).hostname);
    expect(parsed.filter(isLoopback)).toEqual(["127.0.0.1", "127.1.2.3", "localhost", "[::1]"]);
  });
});

describe("addressTowards", () => {
  it("is where a route begins", async () => {
    // Of 127.0.0.0/8 the loopback interface has one address.
    expect(await addressTowards("127.0.0.9")).toBe("127.0.0.1");
  });

  it("names a host that it cannot look up", async () => {
    const failed = addressTowards("no such host");
    await expect(failed).rejects.toThrow("no way leads from this machine to no such host: ");
  });
});

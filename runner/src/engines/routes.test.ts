import { describe, expect, it } from "vitest";
import { checkRoutes, joinRoutes, parseRoutes, type Routes, routesFrom } from "./routes.ts";

// By numpy 2: base64 of np.save of np.arange(12).reshape(3, 2, 2), as uint8, and times 100 as uint16.
const header = "k05VTVBZAQB2AHsnZGVzY3InOiAn";
const rest = [
  "JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDMsIDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAg",
  "ICAgICAgICAgICAgICAgICAgICAgICAgICAgIA",
].join("");
const uint8 = `${header}fHUx${rest}oAAQIDBAUGBwgJCgs=`;
const uint16 = `${header}PHUy${rest}oAAGQAyAAsAZAB9AFYArwCIAOEA+gDTAQ=`;
const count = (length: number, times = 1) => Int16Array.from({ length }, (_, i) => i * times);

describe("routed_experts", () => {
  it("are read as numpy wrote them, of one byte and of two", () => {
    expect(parseRoutes(uint8)).toEqual({ ids: count(12), width: 4 });
    expect(parseRoutes(uint16)).toEqual({ ids: count(12, 100), width: 4 });
  });

  it.each([
    ["no array", Buffer.from("[[0, 1]]").toString("base64"), "no .npy file"],
    ["a part of one", uint8.slice(0, -8), "7 bytes for 3 x 2 x 2 ids"],
    ["another type", uint8.replace("fHUx", "fGY4"), "an array of {'descr': '|f8'"],
  ])("that are %s are refused", (_, text, message) => {
    expect(() => parseRoutes(text)).toThrow(message);
  });

  it("are of every token but the last", () => {
    const routes = { ids: count(12), width: 4 };
    checkRoutes(routes, 4);
    expect(() => checkRoutes(routes, 5)).toThrow("hold routes of 3 positions for 5 tokens");
  });

  it("of a position are those of the pass that sampled from it, where a request went on", () => {
    const kept: Routes = { ids: count(4), width: 2 };
    const whole: Routes = { ids: count(8, 10), width: 2 };
    expect(joinRoutes(kept, whole)).toEqual({ ids: Int16Array.of(0, 1, 2, 3, 40, 50, 60, 70), width: 2 });
    expect(joinRoutes(undefined, whole)).toBe(whole);
    expect(joinRoutes(kept, undefined)).toBe(kept);
    expect(routesFrom(whole, 3)).toEqual({ ids: Int16Array.of(60, 70), width: 2 });
  });
});

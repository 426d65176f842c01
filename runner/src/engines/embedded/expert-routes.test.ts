import { expect, it } from "vitest";
import { ExpertRoutes, encodeRoutes } from "./expert-routes.ts";

function routes(positions: number, ids: number[]): ExpertRoutes {
  const routes = new ExpertRoutes();
  routes.add(Int16Array.from(ids), 0, positions);
  return routes;
}

const moe = { expertIntermediateSize: 8, normTopkProb: true, expertsPerToken: 2 };

it("keeps what is known of a position", () => {
  const one = routes(2, [1, 2, 3, 4]);
  one.add(Int16Array.of(9, 9, 9, 9, 5, 6), 0, 3);
  one.add(Int16Array.of(9, 9), 1, 1);
  expect([...one.all()]).toEqual([1, 2, 3, 4, 5, 6]);
  const other = new ExpertRoutes();
  other.share(one, 2);
  other.add(Int16Array.of(7, 8), 2, 1);
  expect([...other.all()]).toEqual([1, 2, 3, 4, 7, 8]);
  expect(other.positions).toBe(3);
});

// By numpy 2, base64 of np.save.
const npy = (type: string, positions: string, ids: string) =>
  [
    `k05VTVBZAQB2AHsnZGVzY3InOiAn${type}JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogK`,
    `${positions}sIDIsIDIpLCB9${"ICAg".repeat(18)}IAo${ids}`,
  ].join("");

it("is written as numpy does, in one byte and in two, a dense layer's as 0", () => {
  const few = encodeRoutes(routes(3, [1, 2, 3, 4, 5, 6]), { ...moe, numExperts: 256, layers: [0, 1] });
  // Of [[[0, 0], [1, 2]], [[0, 0], [3, 4]], [[0, 0], [5, 6]]] as uint8.
  expect(few).toBe(npy("fHUx", "DM", "AAAECAAADBAAABQY="));
  const many = encodeRoutes(routes(1, [1, 299]), { ...moe, numExperts: 300, layers: [1, 0] });
  // Of [[[1, 299], [0, 0]]] as uint16.
  expect(many).toBe(npy("PHUy", "DE", "BACsBAAAAAA=="));
});

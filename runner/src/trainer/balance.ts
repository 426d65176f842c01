/**
 * Deals `items` into `bins` of nearly equal cost (at least 0): the dearest first, to the cheapest bin so far. Ties
 * follow the items' order.
 */
export function balance<T>(items: readonly T[], bins: number, cost: (item: T) => number): T[][] {
  const result = Array.from({ length: bins }, () => ({ items: [] as T[], cost: 0 }));
  const costs = items.map(cost);
  const order = [...items.keys()].sort((a, b) => costs[b]! - costs[a]! || a - b);
  for (const index of order) {
    const bin = result.reduce((least, candidate) => (candidate.cost < least.cost ? candidate : least));
    bin.items.push(items[index]!);
    bin.cost += costs[index]!;
  }
  return result.map((bin) => bin.items);
}

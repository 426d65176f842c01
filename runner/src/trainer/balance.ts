interface Bin<T> {
  items: T[];
  cost: number;
}

/**
 * Deals `items` into `bins` of nearly equal cost (at least 0): the dearest first, to the cheapest bin so far of those
 * with room. Ties follow the items' order. Null where one finds no room.
 */
export function dealInto<T>(
  items: readonly T[],
  bins: number,
  cost: (item: T) => number,
  hasRoom: (bin: readonly T[], item: T) => boolean,
): T[][] | null {
  const result = Array.from({ length: bins }, (): Bin<T> => ({ items: [], cost: 0 }));
  const costs = items.map(cost);
  const order = [...items.keys()].sort((a, b) => costs[b]! - costs[a]! || a - b);
  for (const index of order) {
    const item = items[index]!;
    let cheapest: Bin<T> | null = null;
    for (const bin of result) {
      if ((cheapest === null || bin.cost < cheapest.cost) && hasRoom(bin.items, item)) cheapest = bin;
    }
    if (cheapest === null) return null;
    cheapest.items.push(item);
    cheapest.cost += costs[index]!;
  }
  return result.map((bin) => bin.items);
}

/** As `dealInto`, where every bin has room. */
export function balance<T>(items: readonly T[], bins: number, cost: (item: T) => number): T[][] {
  return dealInto(items, bins, cost, () => true)!;
}

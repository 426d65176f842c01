import type { ParameterDescription, UnitDescription } from "molt-native";

/** A rank's place among those that hold a model. */
export interface ShardPlace {
  rank: number;
  worldSize: number;
  /** Ranks that the experts are spread over. */
  expertSize: number;
  /** Routers are then in no shard. */
  freezeRouter?: boolean;
}

/** Values of one parameter, flattened, from `start` on, which lie from `offset` on in each array of a shard. */
export type Piece = [name: string, start: number, count: number, offset: number];

/**
 * What lies where in a rank's arrays, as native/src/core/flat.h lays it out: of each unit, the parameters that are
 * trained, then the experts; those with weight decay first, end to end, in equal slices over the ranks that share them.
 */
export function shardTable(
  units: readonly UnitDescription[],
  { rank, worldSize, expertSize, freezeRouter = false }: ShardPlace,
): Piece[] {
  const pieces: Piece[] = [];
  let begin = 0;
  const add = (parameters: ParameterDescription[], place: number, ranks: number) => {
    const laid = [...parameters.filter(({ decay }) => decay), ...parameters.filter(({ decay }) => !decay)];
    const sizes = laid.map(({ shape }) => shape.reduce((product, size) => product * size, 1));
    const slice = Math.ceil(sizes.reduce((sum, size) => sum + size, 0) / ranks);
    const [from, to] = [place * slice, (place + 1) * slice];
    let at = 0;
    for (const [index, size] of sizes.entries()) {
      const [first, end] = [Math.max(at, from), Math.min(at + size, to)];
      if (first < end) pieces.push([laid[index]!.name, first - at, end - first, begin + first - from]);
      at += size;
    }
    begin += slice;
  };
  const isAdapted = units.some(({ adapters }) => adapters !== undefined);
  for (const { parameters, experts = [], adapters } of units) {
    const trained = parameters.filter(({ role }) => !freezeRouter || role !== "router");
    add(isAdapted ? (adapters?.parameters ?? []) : trained, rank, worldSize);
    if (isAdapted || experts.length === 0) continue;
    const each = experts.length / 3 / expertSize;
    const own = experts.filter(({ expert }) => Math.floor(expert! / each) === rank % expertSize);
    add(own, Math.floor(rank / expertSize), worldSize / expertSize);
  }
  return pieces;
}

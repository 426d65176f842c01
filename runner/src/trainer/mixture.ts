import type { DecoderConfig, MoeConfig, PackedRows, Scores } from "molt-native";
import type { UpdateMetrics } from "../algorithms/metrics.ts";
import { RunnerError } from "../errors.ts";
import { type StoredRow, trainedTokens } from "./packing.ts";
import type { MixtureSpec } from "./protocol.ts";

/** Of a policy that is a mixture of experts. */
export interface Mixture extends MixtureSpec {
  config: DecoderConfig;
  moe: MoeConfig;
}

/** What a pass over the rows has to replay. */
export function replayed(rows: readonly StoredRow[], mixture?: Mixture | null): Pick<PackedRows, "routes"> {
  return mixture?.replaysRoutes ? { routes: packRoutes(rows, mixture) } : {};
}

/** As `replayed`, and the weight of each row's balance loss: its part of the update's trained tokens. */
export function mixtureRows(
  rows: readonly StoredRow[],
  mixture: Mixture | null,
  numTokens: number,
): Pick<PackedRows, "routes" | "balance"> {
  if (!mixture || mixture.balanceCoef === 0) return replayed(rows, mixture);
  const weights = rows.map(({ mask }) => (mixture.balanceCoef * trainedTokens(mask)) / numTokens);
  return { ...replayed(rows, mixture), balance: Float32Array.from(weights) };
}

/** `balance_loss` is of a token, over all layers; `route_mismatch` the share of routes that the live choice lacks. */
export function mixtureMetrics(
  { balance, routeMismatch }: Omit<Scores, "logp" | "entropy">,
  mixture: Mixture | null,
  numTokens: number,
): UpdateMetrics {
  const metrics: UpdateMetrics = { sums: {}, maxima: {}, means: {} };
  if (!mixture) return metrics;
  const { balanceCoef } = mixture;
  if (balanceCoef > 0) metrics.sums.balance_loss = (balance / balanceCoef) * numTokens;
  const { differing, compared } = routeMismatch;
  if (compared > 0) metrics.means!.route_mismatch = [differing, compared];
  return metrics;
}

/**
 * Of the mixture's layers, `[T, mixture layers, experts a token]`, for `PackedRows.routes`: -1 where nobody knows. Rows
 * have them of all layers, as engines give them.
 */
function packRoutes(rows: readonly StoredRow[], { config: { numLayers }, moe }: Mixture) {
  const { layers, expertsPerToken } = moe;
  const places = layers.flatMap((isMixture, layer) => (isMixture ? [layer * expertsPerToken] : []));
  const width = numLayers * expertsPerToken;
  const length = rows.reduce((sum, row) => sum + row.tokens.length, 0);
  const packed = new Int16Array(length * places.length * expertsPerToken).fill(-1);
  let at = 0;
  for (const { id, tokens, routes } of rows) {
    if (routes && routes.length !== tokens.length * width) {
      const found = `row ${id} has ${routes.length} routes for ${tokens.length} tokens`;
      throw new RunnerError(`${found}; the model has ${numLayers} layers of ${expertsPerToken} experts a token`);
    }
    for (let t = 0; t < tokens.length; t++) {
      for (const place of places) {
        const from = t * width + place;
        if (routes) packed.set(routes.subarray(from, from + expertsPerToken), at);
        at += expertsPerToken;
      }
    }
  }
  return packed;
}

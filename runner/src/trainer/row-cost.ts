import type { DecoderConfig } from "molt-native";

/**
 * What a row of so many tokens costs beside others, in tokens' worth of matmuls: attention grows with the pairs of a
 * query and a key, whose product and weighted sum each multiply all heads' widths.
 */
export function rowCost(config: DecoderConfig): (tokens: number) => number {
  const { hiddenSize: hidden, headDim, numHeads, numKvHeads, vocabSize, intermediateSize, windows, moe } = config;
  const attention = 2 * hidden * headDim * (numHeads + numKvHeads);
  const mixtures = moe?.layers.reduce((sum, isMixture) => sum + isMixture, 0) ?? 0;
  const dense = 3 * hidden * intermediateSize;
  const routed = moe ? hidden * (moe.numExperts + 3 * moe.expertsPerToken * moe.expertIntermediateSize) : 0;
  const feedForward = (windows.length - mixtures) * dense + mixtures * routed;
  const weights = windows.length * attention + feedForward + vocabSize * hidden;
  const perPair = (2 * numHeads * headDim) / weights;
  return (tokens) => tokens + perPair * windows.reduce((sum, window) => sum + pairs(tokens, window || tokens), 0);
}

/** Of queries and the keys that they see, at most `window` each. */
function pairs(tokens: number, window: number): number {
  const seen = Math.min(tokens, window);
  return (seen * (seen + 1)) / 2 + (tokens - seen) * seen;
}

#pragma once

#include <cstdint>
#include <vector>

/// Choosing tokens by hand: over a large vocabulary ATen's softmax, multinomial and log_softmax cost a fifth of a step.
namespace molt {

/// How one row is sampled.
struct Draw {
  float temperature = 1;  // 0 is greedy
  float topP = 1;        // 1 is off
  int32_t topK = 0;      // 0 is off
  double uniform = 0;     // in [0, 1): where in the distribution to look
};

struct Choice {
  int32_t token = 0;  // -1 where a logit is not finite
  float logprob = 0;
};

/// Throws on values outside their ranges.
void checkDraw(const Draw& draw);

/// exp(x) for the x = (logits - max) / temperature <= 0 of softmax, to float32 precision; 0 below -87.
void expScaled(const float* logits, int64_t count, float max, float inverseTemperature, float* out);

/// Of softmax(logits / temperature): the largest logit, the logarithm of the sum of exp((logit - max) / temperature)
/// and the entropy; all NaN where a logit is not finite.
struct Spread {
  float max, logTotal, entropy;
};
Spread spreadOf(const float* logits, int64_t vocab, float inverseTemperature);

/// Picks one token from logits [vocab]. The log-probability is over the full vocabulary after temperature, whatever
/// top_k and top_p leave out (as vLLM's raw log-probabilities); at temperature 0 it is that of the unscaled
/// distribution. top_k comes first; top_p then keeps the fewest tokens whose share of the rest reaches it. Keeps its
/// buffers between rows.
class RowSampler {
 public:
  Choice choose(const float* logits, int64_t vocab, const Draw& draw);

 private:
  void keepMostLikely(const Draw& draw);
  int32_t invert(double uniform);

  std::vector<float> weights_;  // exponentials, not normalised
  std::vector<int32_t> order_;
};

}  // namespace molt

#include "core/sampling.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/simd.h"

namespace molt {

namespace {

constexpr int64_t kChunk = 1024;
constexpr int64_t kLanes = 16;

struct Top {
  float max;
  bool finite;
};

MOLT_SIMD Top findMax(const float* logits, int64_t count) {
  float lanes[kLanes], zeros[kLanes] = {};
  std::fill(lanes, lanes + kLanes, logits[0]);
  const int64_t even = count / kLanes * kLanes;
  for (int64_t i = 0; i < even; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const float x = logits[i + j];
      lanes[j] = x > lanes[j] ? x : lanes[j];
      zeros[j] += x - x;  // NaN where x is not finite
    }
  }
  float max = *std::max_element(lanes, lanes + kLanes);
  float zero = std::accumulate(zeros, zeros + kLanes, 0.0f);
  for (int64_t i = even; i < count; ++i) {
    max = std::max(max, logits[i]);
    zero += logits[i] - logits[i];
  }
  return {max, zero == 0};
}

MOLT_SIMD double sum(const float* values, int64_t count) {
  float lanes[kLanes] = {};
  const int64_t even = count / kLanes * kLanes;
  for (int64_t i = 0; i < even; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += values[i + j];
  }
  double total = std::accumulate(lanes, lanes + kLanes, 0.0);
  for (int64_t i = even; i < count; ++i) total += values[i];
  return total;
}

// In chunks, so that float32 lanes stay exact enough whatever the vocabulary.
double sumInChunks(const std::vector<float>& values) {
  double total = 0;
  const int64_t count = static_cast<int64_t>(values.size());
  for (int64_t i = 0; i < count; i += kChunk) total += sum(values.data() + i, std::min(kChunk, count - i));
  return total;
}

}  // namespace

void checkDraw(const Draw& draw) {
  const bool warm = draw.temperature >= 0 && std::isfinite(draw.temperature);
  TORCH_CHECK(warm, "temperature ", draw.temperature, " is not in [0, inf)");
  TORCH_CHECK(draw.topP > 0 && draw.topP <= 1, "top_p ", draw.topP, " is not in (0, 1]");
  TORCH_CHECK(draw.topK >= 0, "top_k ", draw.topK, " is negative");
  TORCH_CHECK(draw.uniform >= 0 && draw.uniform < 1, "uniform ", draw.uniform, " is not in [0, 1)");
}

MOLT_SIMD void expScaled(const float* logits, int64_t count, float max, float inverseTemperature, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = expNegative((logits[i] - max) * inverseTemperature);
}

MOLT_SIMD Spread spreadOf(const float* logits, int64_t vocab, float inverseTemperature) {
  const Top top = findMax(logits, vocab);
  if (!top.finite) return {NAN, NAN, NAN};
  double total = 0, weighted = 0;
  float weights[kChunk];
  for (int64_t begin = 0; begin < vocab; begin += kChunk) {
    const int64_t count = std::min(kChunk, vocab - begin);
    expScaled(logits + begin, count, top.max, inverseTemperature, weights);
    total += sum(weights, count);
    for (int64_t i = 0; i < count; ++i) weights[i] *= (logits[begin + i] - top.max) * inverseTemperature;
    weighted += sum(weights, count);
  }
  const double logTotal = std::log(total);
  return {top.max, static_cast<float>(logTotal), static_cast<float>(logTotal - weighted / total)};
}

Choice RowSampler::choose(const float* logits, int64_t vocab, const Draw& draw) {
  const Top top = findMax(logits, vocab);
  if (!top.finite) return {-1, 0};
  const bool greedy = draw.temperature == 0;
  const float inverse = greedy ? 1.0f : 1.0f / draw.temperature;
  weights_.resize(vocab);
  expScaled(logits, vocab, top.max, inverse, weights_.data());
  const double logTotal = std::log(sumInChunks(weights_));
  if (greedy) {
    return {static_cast<int32_t>(std::find(logits, logits + vocab, top.max) - logits), static_cast<float>(-logTotal)};
  }
  if (draw.topK > 0 || draw.topP < 1) keepMostLikely(draw);
  const int32_t token = invert(draw.uniform);
  const double scaled = (static_cast<double>(logits[token]) - top.max) / draw.temperature;
  return {token, static_cast<float>(scaled - logTotal)};
}

// Zeroes the weights of what top_k and top_p leave out. Equal weights rank by id.
void RowSampler::keepMostLikely(const Draw& draw) {
  const size_t vocab = weights_.size();
  size_t kept = draw.topK > 0 ? std::min<size_t>(draw.topK, vocab) : vocab;
  order_.resize(vocab);
  std::iota(order_.begin(), order_.end(), 0);
  std::partial_sort(order_.begin(), order_.begin() + kept, order_.end(), [this](int32_t a, int32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  });
  if (draw.topP < 1) {
    double total = 0;
    for (size_t i = 0; i < kept; ++i) total += weights_[order_[i]];
    double reached = 0;
    size_t nucleus = 0;
    while (nucleus < kept && reached < draw.topP * total) reached += weights_[order_[nucleus++]];
    kept = nucleus;
  }
  for (size_t i = kept; i < vocab; ++i) weights_[order_[i]] = 0;
}

// The first token at which the cumulative weight exceeds uniform * total. Chunks are skipped by their sums.
int32_t RowSampler::invert(double uniform) {
  const int64_t vocab = static_cast<int64_t>(weights_.size());
  const double target = uniform * sumInChunks(weights_);
  double before = 0;
  int32_t last = 0;  // rounding may leave the end just out of reach: then the last possible token
  for (int64_t begin = 0; begin < vocab; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, vocab);
    const double after = before + sum(weights_.data() + begin, end - begin);
    if (after <= target && end < vocab) {
      before = after;
      continue;
    }
    for (int64_t i = begin; i < end; ++i) {
      if (weights_[i] == 0) continue;
      last = static_cast<int32_t>(i);
      before += weights_[i];
      if (before > target) return last;
    }
  }
  return last;
}

}  // namespace molt

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/decoder.h"
#include "core/kv_cache.h"
#include "core/sampling.h"
#include "core/served.h"
#include "core/tensor_io.h"

namespace molt {

class ProcessGroup;

struct SamplerBatch {
  std::vector<int32_t> sequences;  // [B], each at most once
  std::vector<int32_t> cu;         // [B+1]
  std::vector<int32_t> tokens;     // [cu[B]]
  std::vector<Draw> draws;         // [B]
  std::vector<uint8_t> score;      // [B] 1: log-probabilities of the new tokens too
};

struct SamplerResult {
  std::vector<Choice> choices;                 // [B]
  std::vector<std::vector<float>> newLogprobs;  // [B], of the new tokens, NaN for the first; empty where not asked for
  std::vector<std::vector<int16_t>> routes;     // [B], the new tokens' [count, mixtures, K]; empty where not asked for
};

struct SamplerOptions {
  DecoderConfig config;
  std::vector<UnitDescription> units;
  int64_t pageSize = 0;
  int64_t numPages = 0;
  at::ScalarType dtype = at::kFloat;
  bool plain = false;   // ATen's operators throughout
  bool routes = false;  // steps tell the experts of each token
};

/// A decoder with whole weights and a paged cache, for generation. All but `cache` belongs to the native thread.
class Sampler {
 public:
  explicit Sampler(SamplerOptions options);

  void load(const std::vector<TensorLocation>& tensors);
  /// What rank 0 sends, in the order of `names`: all parameters'.
  void receive(ProcessGroup& transfer, const std::vector<std::string>& names);
  /// Of the float32 values that came in, whatever dtype they are kept in.
  std::string checksum() const;
  /// The next token of each sequence. Whatever it throws, the sequences are as before.
  SamplerResult step(const SamplerBatch& batch);

  KvCache& cache() { return cache_; }

 private:
  void check(const SamplerBatch& batch) const;
  /// After the last layer, [T, H]; adds each mixture's choices, int64 [T, K].
  at::Tensor hiddenOf(
      const SamplerBatch& batch, const std::vector<Span>& spans, std::vector<at::Tensor>& routes) const;
  std::vector<Choice> choose(const SamplerBatch& batch, const at::Tensor& hidden) const;
  std::vector<std::vector<float>> score(const SamplerBatch& batch, const at::Tensor& hidden) const;

  const SamplerOptions options_;
  KvCache cache_;
  ServedWeights weights_;
  std::vector<uint64_t> hashes_;  // of the parameters, in the units' order
  bool complete_ = false;         // no weights yet, or a transfer broke off
};

}  // namespace molt

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/decoder.h"
#include "core/kv_cache.h"
#include "core/sampling.h"
#include "core/tensor_io.h"

namespace molt {

class ProcessGroup;

struct SamplerBatch {
  std::vector<int32_t> sequences;  // [B], each at most once
  std::vector<int32_t> cu;         // [B+1]
  std::vector<int32_t> tokens;     // [cu[B]]
  std::vector<Draw> draws;         // [B]
};

/// A decoder with whole weights and a paged cache, for generation. All but `cache` belongs to the native thread.
class Sampler {
 public:
  Sampler(DecoderConfig config, std::vector<UnitDescription> units, int64_t pageSize, int64_t numPages);

  void load(const std::vector<TensorLocation>& tensors);
  /// One broadcast from rank 0 for each name, in this order; the names are those of all parameters, in any order.
  void receive(ProcessGroup& transfer, const std::vector<std::string>& names);
  std::string checksum() const;
  /// The next token of each sequence. Whatever it throws, the sequences are as before.
  std::vector<Choice> step(const SamplerBatch& batch);

  KvCache& cache() { return cache_; }

 private:
  void check(const SamplerBatch& batch) const;
  at::Tensor lastLogits(const SamplerBatch& batch, const std::vector<Span>& spans) const;

  const DecoderConfig config_;
  const std::vector<UnitDescription> units_;
  KvCache cache_;
  RowSampler rowSampler_;
  std::vector<UnitWeights> weights_;                             // views into one buffer a unit
  std::vector<std::pair<std::string, at::Tensor>> parameters_;  // the same views by name, in the units' order
  bool complete_ = false;                                        // no weights yet, or a transfer broke off
};

}  // namespace molt

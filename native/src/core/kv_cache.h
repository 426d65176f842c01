#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/decoder.h"

namespace molt {

/// One sequence's part of a step: `count` new tokens after `past` cached ones.
struct Span {
  int32_t sequence = 0;
  int64_t past = 0;
  int64_t count = 0;
  std::vector<int32_t> pages;  // a copy: those of past + count tokens
};

/// Keys and values of running sequences in pages of `pageSize` tokens. Slot s of a layer is token s % pageSize of page
/// s / pageSize. The tables have a lock, so sequences may be freed from another thread; the tensors belong to the
/// native thread. Whoever is freed amid a step loses nothing but its own result: pages are handed out between steps.
class KvCache {
 public:
  KvCache(const DecoderConfig& config, int64_t pageSize, int64_t numPages);

  /// Makes room for counts[i] more tokens of sequences[i], opening those not known. Throws "out of pages" before
  /// anything has changed.
  std::vector<Span> extend(const std::vector<int32_t>& sequences, const std::vector<int64_t>& counts);
  /// Takes back what `extend` gave.
  void rollBack(const std::vector<Span>& spans);
  void free(int32_t sequence);
  int64_t freePages() const;

  /// Appends the slots of tokens from..to of one sequence.
  void appendSlots(const Span& span, int64_t from, int64_t to, std::vector<int64_t>& slots) const;
  /// [slots, kv heads, D]
  const at::Tensor& keys(int64_t layer) const { return keys_[layer]; }
  const at::Tensor& values(int64_t layer) const { return values_[layer]; }
  int64_t pageSize() const { return pageSize_; }

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<int32_t> pages;
  };
  int64_t pagesFor(int64_t tokens) const { return (tokens + pageSize_ - 1) / pageSize_; }
  void truncate(int32_t sequence, int64_t length);

  const int64_t pageSize_;
  std::vector<at::Tensor> keys_, values_;
  mutable std::mutex mutex_;
  std::unordered_map<int32_t, Sequence> sequences_;
  std::vector<int32_t> free_;
};

/// Attention of one new token of each of `spans` over its pages, scaled by 1 / sqrt(D). Query i is row rows[i] of q
/// [T, heads, D] and its result that row of out. Float32 on the CPU.
void decodeAttention(
    const KvCache& cache,
    int64_t layer,
    const std::vector<const Span*>& spans,
    const std::vector<int64_t>& rows,
    const at::Tensor& q,
    const at::Tensor& out);

}  // namespace molt

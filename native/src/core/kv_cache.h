#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
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
  KvCache(const DecoderConfig& config, int64_t pageSize, int64_t numPages, at::ScalarType dtype);

  /// Makes room for counts[i] more tokens of sequences[i], opening those not known. Throws "out of pages" before
  /// anything has changed.
  std::vector<Span> extend(const std::vector<int32_t>& sequences, const std::vector<int64_t>& counts);
  /// Opens `to` with the first `length` tokens of `from`, from any thread. Whole pages are shared; a page begun is
  /// copied before the next step writes. Throws before anything has changed.
  void fork(int32_t from, int32_t to, int64_t length);
  /// Takes back what `extend` gave.
  void rollBack(const std::vector<Span>& spans);
  void free(int32_t sequence);
  int64_t freePages() const;

  /// Appends the slots of tokens from..to of one sequence.
  void appendSlots(const Span& span, int64_t from, int64_t to, std::vector<int64_t>& slots) const;
  /// [slots, kv heads, D]
  const at::Tensor& keys(int64_t layer) const { return keys_[layer]; }
  const at::Tensor& values(int64_t layer) const { return values_[layer]; }

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<int32_t> pages;
  };
  int64_t pagesFor(int64_t tokens) const { return (tokens + pageSize_ - 1) / pageSize_; }
  void truncate(int32_t sequence, int64_t length);
  int32_t takePage();
  void copyForked();

  const int64_t pageSize_;
  std::vector<at::Tensor> keys_, values_;
  mutable std::mutex mutex_;
  std::unordered_map<int32_t, Sequence> sequences_;
  std::vector<int32_t> free_;
  std::vector<int32_t> holders_;                      // [pages], sequences that have it
  std::vector<std::pair<int32_t, int32_t>> copies_;  // pages begun of forks, from and to, in order
};

/// One new token of a sequence: its row among the step's tokens, and the slots of all tokens so far, its own included.
struct Decode {
  int64_t row;
  std::vector<int64_t> slots;
};

/// Attention of each of `decodes` over its last `window` tokens (0: all), scaled by 1 / sqrt(D). Reads row `row` of
/// q [T, heads, D] and writes that row of out; both float32, on the CPU.
void decodeAttention(
    const KvCache& cache,
    int64_t layer,
    int64_t window,
    const std::vector<Decode>& decodes,
    const at::Tensor& q,
    const at::Tensor& out);

}  // namespace molt

#include "core/kv_cache.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/device.h"
#include "core/sampling.h"
#include "core/simd.h"

namespace molt {

KvCache::KvCache(const DecoderConfig& config, int64_t pageSize, int64_t numPages, at::ScalarType dtype)
    : pageSize_(pageSize) {
  TORCH_CHECK(pageSize > 0 && numPages > 0, "a cache of ", numPages, " pages of ", pageSize, " tokens is empty");
  for (int64_t layer = 0; layer < config.numLayers; ++layer) {
    // Not zeroed: no slot is read before it is written, and untouched pages take no memory.
    keys_.push_back(at::empty({numPages * pageSize, config.numKvHeads, config.headDim}, onDevice(dtype)));
    values_.push_back(at::empty_like(keys_.back()));
  }
  free_.resize(numPages);
  std::iota(free_.rbegin(), free_.rend(), 0);
  holders_.resize(numPages);
}

std::vector<Span> KvCache::extend(const std::vector<int32_t>& sequences, const std::vector<int64_t>& counts) {
  const std::lock_guard lock(mutex_);
  int64_t wanted = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto known = sequences_.find(sequences[i]);
    const int64_t past = known == sequences_.end() ? 0 : known->second.length;
    wanted += pagesFor(past + counts[i]) - pagesFor(past);
  }
  TORCH_CHECK(
      wanted <= static_cast<int64_t>(free_.size()), "out of pages: the step needs ", wanted, " more pages of ",
      pageSize_, " tokens, ", free_.size(), " are free");
  copyForked();
  std::vector<Span> spans;
  for (size_t i = 0; i < sequences.size(); ++i) {
    auto& [length, pages] = sequences_[sequences[i]];
    const int64_t past = std::exchange(length, length + counts[i]);
    while (static_cast<int64_t>(pages.size()) < pagesFor(length)) pages.push_back(takePage());
    spans.push_back({sequences[i], past, counts[i], pages});
  }
  return spans;
}

int32_t KvCache::takePage() {
  const int32_t page = free_.back();
  free_.pop_back();
  holders_[page] = 1;
  return page;
}

void KvCache::fork(int32_t from, int32_t to, int64_t length) {
  const std::lock_guard lock(mutex_);
  const auto parent = sequences_.find(from);
  TORCH_CHECK(
      parent != sequences_.end() && length > 0 && length <= parent->second.length, "sequence ", from, " has no ",
      length, " tokens to fork");
  TORCH_CHECK(!sequences_.contains(to), "sequence ", to, " is there already: a fork opens a new one");
  const bool begun = length % pageSize_ != 0;
  TORCH_CHECK(!begun || !free_.empty(), "out of pages: a fork needs 1 more page, 0 are free");
  const auto& pages = parent->second.pages;
  Sequence child{length, {pages.begin(), pages.begin() + length / pageSize_}};
  for (const int32_t page : child.pages) ++holders_[page];
  if (begun) {
    child.pages.push_back(takePage());
    copies_.emplace_back(pages[length / pageSize_], child.pages.back());
  }
  sequences_.emplace(to, std::move(child));
}

// On the native thread, before a step writes. A page that changed hands meanwhile was the target of a later copy at
// most, so copying in order is right.
void KvCache::copyForked() {
  for (const auto& [from, to] : std::exchange(copies_, {})) {
    for (const auto* tensors : {&keys_, &values_}) {
      for (const auto& slots : *tensors) {
        slots.narrow(0, to * pageSize_, pageSize_).copy_(slots.narrow(0, from * pageSize_, pageSize_));
      }
    }
  }
}

void KvCache::rollBack(const std::vector<Span>& spans) {
  const std::lock_guard lock(mutex_);
  for (const auto& span : spans) truncate(span.sequence, span.past);
}

void KvCache::free(int32_t sequence) {
  const std::lock_guard lock(mutex_);
  truncate(sequence, 0);
}

void KvCache::truncate(int32_t sequence, int64_t length) {
  const auto known = sequences_.find(sequence);
  if (known == sequences_.end()) return;
  auto& pages = known->second.pages;
  const auto kept = pages.begin() + pagesFor(length);
  for (auto page = pages.end(); page != kept;) {
    if (--holders_[*--page] == 0) free_.push_back(*page);
  }
  pages.erase(kept, pages.end());
  known->second.length = length;
  if (length == 0) sequences_.erase(known);
}

int64_t KvCache::freePages() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(free_.size());
}

void KvCache::appendSlots(const Span& span, int64_t from, int64_t to, std::vector<int64_t>& slots) const {
  for (int64_t i = from; i < to; ++i) slots.push_back(span.pages[i / pageSize_] * pageSize_ + i % pageSize_);
}

namespace {

struct Heads {
  int64_t kvHeads, group, dim;
};

constexpr int64_t kLanes = 16;
// Multiplications that are worth a thread.
constexpr int64_t kWork = 1 << 16;

inline __attribute__((always_inline)) float toFloat(float value) {
  return value;
}

inline __attribute__((always_inline)) float toFloat(at::BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16);
}

template <typename Value>
inline __attribute__((always_inline)) float dot(const float* a, const Value* b, int64_t count) {
  float lanes[kLanes] = {};
  const int64_t even = count / kLanes * kLanes;
  for (int64_t i = 0; i < even; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * toFloat(b[i + j]);
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  for (int64_t i = even; i < count; ++i) lanes[0] += a[i] * toFloat(b[i]);
  return lanes[0];
}

// The query heads q [group, D] of one kv head against the tokens in `slots` [length]: keys and values point at that
// head's vector in slot 0. Each key and value is read once for the whole group. scores: [group, length].
template <typename Value>
inline __attribute__((always_inline)) void attendHead(
    const float* q, const Value* keys, const Value* values, const int64_t* slots, int64_t length, const Heads& heads,
    float* scores, float* out) {
  const int64_t stride = heads.kvHeads * heads.dim;
  for (int64_t i = 0; i < length; ++i) {
    const Value* key = keys + slots[i] * stride;
    for (int64_t g = 0; g < heads.group; ++g) scores[g * length + i] = dot(q + g * heads.dim, key, heads.dim);
  }
  const float scale = 1 / std::sqrt(static_cast<float>(heads.dim));
  for (int64_t g = 0; g < heads.group; ++g) {
    float* row = scores + g * length;
    expScaled(row, length, *std::max_element(row, row + length), scale, row);
    const float inverse = 1 / std::accumulate(row, row + length, 0.0F);
    for (int64_t i = 0; i < length; ++i) row[i] *= inverse;
  }
  std::fill(out, out + heads.group * heads.dim, 0.0F);
  for (int64_t i = 0; i < length; ++i) {
    const Value* value = values + slots[i] * stride;
    for (int64_t g = 0; g < heads.group; ++g) {
      const float weight = scores[g * length + i];
      for (int64_t d = 0; d < heads.dim; ++d) out[g * heads.dim + d] += weight * toFloat(value[d]);
    }
  }
}

MOLT_SIMD void attend(
    const float* q, const float* keys, const float* values, const int64_t* slots, int64_t length, const Heads& heads,
    float* scores, float* out) {
  attendHead(q, keys, values, slots, length, heads, scores, out);
}

MOLT_SIMD void attend(
    const float* q, const at::BFloat16* keys, const at::BFloat16* values, const int64_t* slots, int64_t length,
    const Heads& heads, float* scores, float* out) {
  attendHead(q, keys, values, slots, length, heads, scores, out);
}

}  // namespace

void decodeAttention(
    const KvCache& cache,
    int64_t layer,
    int64_t window,
    const std::vector<Decode>& decodes,
    const at::Tensor& q,
    const at::Tensor& out) {
  const int64_t kvHeads = cache.keys(layer).size(1);
  const Heads heads{kvHeads, q.size(1) / kvHeads, q.size(2)};
  const float* queries = q.const_data_ptr<float>();
  float* results = out.mutable_data_ptr<float>();
  size_t longest = 0;
  for (const auto& decode : decodes) longest = std::max(longest, decode.slots.size());
  const int64_t grain = std::max<int64_t>(1, kWork / (2 * longest * heads.group * heads.dim + 1));
  const auto run = [&](const auto* keys, const auto* values) {
    at::parallel_for(0, static_cast<int64_t>(decodes.size()) * kvHeads, grain, [&](int64_t first, int64_t last) {
      std::vector<float> scores(longest * heads.group);
      for (int64_t item = first; item < last; ++item) {
        const auto& [row, slots] = decodes[item / kvHeads];
        const int64_t head = item % kvHeads, kv = head * heads.dim;
        const int64_t at = (row * kvHeads + head) * heads.group * heads.dim;
        const auto all = static_cast<int64_t>(slots.size()), seen = window > 0 ? std::min(all, window) : all;
        attend(
            queries + at, keys + kv, values + kv, slots.data() + all - seen, seen, heads, scores.data(), results + at);
      }
    });
  };
  const auto& keys = cache.keys(layer);
  const auto& values = cache.values(layer);
  if (keys.scalar_type() == at::kFloat) {
    run(keys.const_data_ptr<float>(), values.const_data_ptr<float>());
  } else {
    run(keys.const_data_ptr<at::BFloat16>(), values.const_data_ptr<at::BFloat16>());
  }
}

}  // namespace molt

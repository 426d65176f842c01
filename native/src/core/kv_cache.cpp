#include "core/kv_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/sampling.h"
#include "core/simd.h"

namespace molt {

KvCache::KvCache(const DecoderConfig& config, int64_t pageSize, int64_t numPages) : pageSize_(pageSize) {
  TORCH_CHECK(pageSize > 0 && numPages > 0, "a cache of ", numPages, " pages of ", pageSize, " tokens is empty");
  for (int64_t layer = 0; layer < config.numLayers; ++layer) {
    // Not zeroed: no slot is read before it is written, and untouched pages take no memory.
    keys_.push_back(at::empty({numPages * pageSize, config.numKvHeads, config.headDim}, at::kFloat));
    values_.push_back(at::empty(keys_.back().sizes(), at::kFloat));
  }
  free_.resize(numPages);
  std::iota(free_.rbegin(), free_.rend(), 0);
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
  std::vector<Span> spans;
  for (size_t i = 0; i < sequences.size(); ++i) {
    auto& [length, pages] = sequences_[sequences[i]];
    const int64_t past = std::exchange(length, length + counts[i]);
    while (static_cast<int64_t>(pages.size()) < pagesFor(length)) {
      pages.push_back(free_.back());
      free_.pop_back();
    }
    spans.push_back({sequences[i], past, counts[i], pages});
  }
  return spans;
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
  free_.insert(free_.end(), std::make_reverse_iterator(pages.end()), std::make_reverse_iterator(kept));
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

// Shapes and strides of one layer's cache, for the loops below.
struct Heads {
  int64_t kvHeads, group, dim, pageSize;
};

constexpr int64_t kLanes = 8;

inline float dot(const float* a, const float* b, int64_t count) {
  float lanes[kLanes] = {};
  const int64_t even = count / kLanes * kLanes;
  for (int64_t i = 0; i < even; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  float total = 0;
  for (int64_t j = 0; j < kLanes; ++j) total += lanes[j];
  for (int64_t i = even; i < count; ++i) total += a[i] * b[i];
  return total;
}

// One query head against `length` cached tokens of one kv head: keys and values point at its first slot's vector.
MOLT_SIMD void attend(
    const float* q,
    const float* keys,
    const float* values,
    const Span& span,
    const Heads& heads,
    float* scores,
    float* out) {
  const int64_t length = span.past + span.count;
  const int64_t stride = heads.kvHeads * heads.dim;
  float max = -INFINITY;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t slot = span.pages[i / heads.pageSize] * heads.pageSize + i % heads.pageSize;
    scores[i] = dot(q, keys + slot * stride, heads.dim);
    max = std::max(max, scores[i]);
  }
  expScaled(scores, length, max, 1 / std::sqrt(static_cast<float>(heads.dim)), scores);
  float total = 0;
  std::fill(out, out + heads.dim, 0.0f);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t slot = span.pages[i / heads.pageSize] * heads.pageSize + i % heads.pageSize;
    const float* value = values + slot * stride;
    total += scores[i];
    for (int64_t d = 0; d < heads.dim; ++d) out[d] += scores[i] * value[d];
  }
  for (int64_t d = 0; d < heads.dim; ++d) out[d] /= total;
}

}  // namespace

void decodeAttention(
    const KvCache& cache,
    int64_t layer,
    const std::vector<const Span*>& spans,
    const std::vector<int64_t>& rows,
    const at::Tensor& q,
    const at::Tensor& out) {
  const float* keys = cache.keys(layer).const_data_ptr<float>();
  const float* values = cache.values(layer).const_data_ptr<float>();
  const int64_t kvHeads = cache.keys(layer).size(1);
  const Heads heads{kvHeads, q.size(1) / kvHeads, q.size(2), cache.pageSize()};
  const float* queries = q.const_data_ptr<float>();
  float* results = out.mutable_data_ptr<float>();
  std::vector<float> scores;
  for (size_t i = 0; i < spans.size(); ++i) {
    scores.resize(spans[i]->past + spans[i]->count);
    for (int64_t head = 0; head < q.size(1); ++head) {
      const int64_t at = (rows[i] * q.size(1) + head) * heads.dim;
      const int64_t kv = head / heads.group * heads.dim;
      attend(queries + at, keys + kv, values + kv, *spans[i], heads, scores.data(), results + at);
    }
  }
}

}  // namespace molt

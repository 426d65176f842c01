#include "core/sampler.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_set>

#include "core/device.h"
#include "core/transfer.h"

namespace molt {

namespace {

// Where a step's tokens lie and how their attention is computed; the same for every layer.
struct Plan {
  // Prompts of one shape: n sequences of `count` new tokens after `past` cached ones.
  struct Prompts {
    int64_t past, count;
    at::Tensor rows;   // [n * count] of the step's tokens
    at::Tensor slots;  // [n * (past + count)] of the cache
  };
  at::Tensor positions;  // [T]
  at::Tensor slots;      // [T] where the new keys and values go
  std::vector<Decode> decodes;
  std::vector<Prompts> prompts;
};

Plan::Prompts planPrompts(
    const KvCache& cache,
    const std::vector<Span>& spans,
    const std::vector<int32_t>& cu,
    const std::vector<size_t>& members) {
  const int64_t past = spans[members[0]].past;
  const int64_t count = spans[members[0]].count;
  std::vector<int64_t> rows, slots;
  for (const size_t i : members) {
    for (int64_t t = 0; t < count; ++t) rows.push_back(cu[i] + t);
    cache.appendSlots(spans[i], 0, past + count, slots);
  }
  return {past, count, at::tensor(rows).to(computeDevice()), at::tensor(slots).to(computeDevice())};
}

// byHand: single tokens go to decodeAttention.
Plan makePlan(const KvCache& cache, const std::vector<Span>& spans, const std::vector<int32_t>& cu, bool byHand) {
  Plan plan;
  std::vector<int64_t> positions, slots;
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> shapes;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto& span = spans[i];
    for (int64_t t = 0; t < span.count; ++t) positions.push_back(span.past + t);
    cache.appendSlots(span, span.past, span.past + span.count, slots);
    if (byHand && span.count == 1) {
      cache.appendSlots(span, 0, span.past + 1, plan.decodes.emplace_back(Decode{cu[i], {}}).slots);
    } else {
      shapes[{span.past, span.count}].push_back(i);
    }
  }
  for (const auto& [shape, members] : shapes) plan.prompts.push_back(planPrompts(cache, spans, cu, members));
  plan.positions = at::tensor(positions).to(computeDevice());
  plan.slots = at::tensor(slots).to(computeDevice());
  return plan;
}

// Rows [n * length, heads, D] as [n, heads, length, D].
at::Tensor byHead(const at::Tensor& rows, int64_t length) {
  return rows.unflatten(0, {-1, length}).transpose(1, 2);
}

// Of queries past .. past + count over keys 0 .. past + count, bool; none where plain causal attention will do.
std::optional<at::Tensor> maskOf(int64_t past, int64_t count, int64_t window) {
  const bool narrow = window > 0 && window < past + count;
  if (past == 0 && !narrow) return std::nullopt;
  auto mask = at::ones({count, past + count}, onDevice(at::kBool)).tril_(past);
  return narrow ? mask.triu_(past + 1 - window) : mask;
}

// Stores the new keys and values of one layer, then attends. Gives [T, heads, D] of the queries' dtype.
at::Tensor attend(const KvCache& cache, int64_t layer, int64_t window, const Plan& plan, const Qkv& qkv) {
  const auto& keys = cache.keys(layer);
  const auto& values = cache.values(layer);
  keys.index_copy_(0, plan.slots, qkv.k);
  values.index_copy_(0, plan.slots, qkv.v);
  const auto out = at::empty(qkv.q.sizes(), onDevice(at::kFloat));
  if (!plan.decodes.empty()) {
    decodeAttention(cache, layer, window, plan.decodes, qkv.q.to(at::kFloat).contiguous(), out);
  }
  for (const auto& [past, count, rows, slots] : plan.prompts) {
    const auto mask = maskOf(past, count, window);
    const auto attended = at::scaled_dot_product_attention(
        byHead(qkv.q.index_select(0, rows), count),
        byHead(keys.index_select(0, slots), past + count), byHead(values.index_select(0, slots), past + count), mask,
        0.0, !mask, std::nullopt, true);
    out.index_copy_(0, rows, attended.transpose(1, 2).flatten(0, 1).to(at::kFloat));
  }
  return out.to(qkv.q.scalar_type());
}

// Runs body(begin, end) over the rows of a step's logits, each of them work enough for a thread.
template <typename Body>
void forEachRow(int64_t rows, int64_t vocab, Body body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / vocab), body);
}

constexpr int64_t kScoredRows = 1024;  // rows of logits held at once

using Routes = std::vector<std::vector<int16_t>>;

// Each sequence's part of the mixtures' choices, int64 [T, K] each.
Routes routesOf(const SamplerBatch& batch, const std::vector<at::Tensor>& mixtures) {
  const auto all = at::stack(mixtures, 1).to(at::kShort).cpu();
  Routes routes;
  for (size_t i = 0; i + 1 < batch.cu.size(); ++i) {
    const auto part = all.slice(0, batch.cu[i], batch.cu[i + 1]);
    routes.emplace_back(part.const_data_ptr<int16_t>(), part.const_data_ptr<int16_t>() + part.numel());
  }
  return routes;
}

}  // namespace

Sampler::Sampler(SamplerOptions options)
    : options_(std::move(options)),
      cache_(options_.config, options_.pageSize, options_.numPages, options_.dtype),
      weights_(options_.config, options_.units, options_.dtype, options_.plain),
      hashes_(weights_.parameters().size()) {
  TORCH_CHECK(!options_.routes || options_.config.moe, "only a mixture of experts has routes");
}

void Sampler::load(const std::vector<TensorLocation>& tensors) {
  const auto located = locateParameters(options_.units, tensors);
  complete_ = false;
  weights_.begin();
  for (size_t i = 0; i < located.size(); ++i) {
    const auto values = mapTensor(located[i]).to(at::kFloat);
    hashes_[i] = hashOf(values);
    weights_.put(i, values);
  }
  weights_.finish();
  complete_ = true;
}

void Sampler::receive(ProcessGroup& transfer, const std::vector<std::string>& names) {
  std::map<std::string, size_t> missing;
  for (size_t i = 0; i < hashes_.size(); ++i) missing[weights_.parameters()[i].first] = i;
  std::vector<size_t> order;
  for (const auto& name : names) {
    const auto found = missing.extract(name);
    TORCH_CHECK(!found.empty(), "tensor '", name, "' is not of this model, or named twice: nothing was received");
    order.push_back(found.mapped());
  }
  TORCH_CHECK(
      missing.empty(), missing.size(), " of the model's tensors are not named, such as '",
      missing.empty() ? "" : missing.begin()->first, "': nothing was received");
  complete_ = false;
  weights_.begin();
  std::vector<at::IntArrayRef> shapes;
  for (const size_t i : order) shapes.push_back(weights_.parameters()[i].second.sizes());
  receiveWeights(transfer, shapes, [&](size_t next, const at::Tensor& values) {
    hashes_[order[next]] = hashOf(values);
    weights_.put(order[next], values);
  });
  weights_.finish();
  complete_ = true;
}

std::string Sampler::checksum() const {
  Checksum sum;
  for (const uint64_t hash : hashes_) sum.update(hash);
  return sum.hexadecimal();
}

void Sampler::check(const SamplerBatch& batch) const {
  TORCH_CHECK(complete_, "the sampler has no complete weights: load or receive them first");
  const size_t count = batch.sequences.size();
  TORCH_CHECK(
      count > 0 && batch.cu.size() == count + 1 && batch.draws.size() == count && batch.score.size() == count &&
          batch.cu[0] == 0 && batch.cu[count] == static_cast<int64_t>(batch.tokens.size()),
      "the arrays of a step do not fit together");
  std::unordered_set<int32_t> seen;
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK(seen.insert(batch.sequences[i]).second, "sequence ", batch.sequences[i], " is twice in one step");
    TORCH_CHECK(batch.cu[i + 1] > batch.cu[i], "sequence ", batch.sequences[i], " has no new token");
    checkDraw(batch.draws[i]);
  }
  for (const int32_t token : batch.tokens) {
    const bool known = token >= 0 && token < options_.config.vocabSize;
    TORCH_CHECK(known, "token ", token, " is not in the vocabulary of ", options_.config.vocabSize);
  }
}

SamplerResult Sampler::step(const SamplerBatch& batch) {
  const c10::InferenceMode inference;
  check(batch);
  std::vector<int64_t> counts;
  for (size_t i = 0; i < batch.sequences.size(); ++i) counts.push_back(batch.cu[i + 1] - batch.cu[i]);
  const auto spans = cache_.extend(batch.sequences, counts);
  try {
    std::vector<at::Tensor> routes;
    const auto hidden = hiddenOf(batch, spans, routes);
    return {choose(batch, hidden), score(batch, hidden), options_.routes ? routesOf(batch, routes) : Routes()};
  } catch (...) {
    cache_.rollBack(spans);
    throw;
  }
}

at::Tensor Sampler::hiddenOf(
    const SamplerBatch& batch, const std::vector<Span>& spans, std::vector<at::Tensor>& routes) const {
  const auto& config = options_.config;
  const Plan plan = makePlan(cache_, spans, batch.cu, !options_.plain && computeDevice().is_cpu());
  const Rotary rotary = rotaryTables(config, plan.positions);
  auto hidden = weights_.embed(at::tensor(batch.tokens, at::kLong).to(computeDevice()));
  for (int64_t layer = 0; layer < config.numLayers; ++layer) {
    const int64_t window = config.windows[layer];
    const auto attention = [&](const Qkv& qkv) { return attend(cache_, layer, window, plan, qkv); };
    hidden = weights_.layer(layer, hidden, rotary, attention, routes);
  }
  return hidden;
}

std::vector<Choice> Sampler::choose(const SamplerBatch& batch, const at::Tensor& hidden) const {
  const std::vector<int64_t> ends(batch.cu.begin() + 1, batch.cu.end());
  const int64_t vocab = options_.config.vocabSize;
  const int64_t count = static_cast<int64_t>(ends.size());
  const bool all = hidden.size(0) == count;
  const auto last = at::tensor(ends).sub_(1).to(computeDevice());
  const auto logits = weights_.logits(all ? hidden : hidden.index_select(0, last));
  const float* rows = logits.const_data_ptr<float>();
  std::vector<Choice> choices(count);
  forEachRow(count, vocab, [&](int64_t begin, int64_t end) {
    thread_local RowSampler sampler;  // keeps its buffers
    for (int64_t i = begin; i < end; ++i) choices[i] = sampler.choose(rows + i * vocab, vocab, batch.draws[i]);
  });
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(choices[i].token >= 0, "sequence ", batch.sequences[i], ": the logits are not finite");
  }
  return choices;
}

std::vector<std::vector<float>> Sampler::score(const SamplerBatch& batch, const at::Tensor& hidden) const {
  std::vector<std::vector<float>> scores(batch.sequences.size());
  const int64_t vocab = options_.config.vocabSize;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!batch.score[i]) continue;
    const int64_t first = batch.cu[i], last = batch.cu[i + 1] - 1;
    scores[i].assign(last + 1 - first, NAN);
    for (int64_t begin = first; begin < last; begin += kScoredRows) {
      const int64_t count = std::min(kScoredRows, last - begin);
      const auto logits = weights_.logits(hidden.narrow(0, begin, count));
      const float* rows = logits.const_data_ptr<float>();
      float* out = scores[i].data() + begin - first + 1;
      const int32_t* next = batch.tokens.data() + begin + 1;
      forEachRow(count, vocab, [&](int64_t from, int64_t to) {
        for (int64_t row = from; row < to; ++row) {
          const Spread spread = spreadOf(rows + row * vocab, vocab, 1);
          out[row] = rows[row * vocab + next[row]] - spread.max - spread.logTotal;
        }
      });
    }
  }
  return scores;
}

}  // namespace molt

#include "core/sampler.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <unordered_set>

#include "core/process_group.h"

namespace molt {

namespace {

// Where a step's tokens lie and how their attention is computed; the same for every layer.
struct Plan {
  // Prompts of one shape: n sequences of `count` new tokens after `past` cached ones.
  struct Prompts {
    int64_t past, count;
    at::Tensor rows;   // [n * count] of the step's tokens
    at::Tensor slots;  // [n * (past + count)] of the cache
    at::Tensor mask;   // [count, past + count] bool; undefined where nothing is cached: plain causal
  };
  at::Tensor positions;              // [T]
  at::Tensor slots;                  // [T] where the new keys and values go
  std::vector<const Span*> decodes;  // sequences with one new token
  std::vector<int64_t> decodeRows;
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
  const auto mask = past > 0 ? at::ones({count, past + count}, at::kBool).tril_(past) : at::Tensor();
  return {past, count, at::tensor(rows), at::tensor(slots), mask};
}

Plan makePlan(const KvCache& cache, const std::vector<Span>& spans, const std::vector<int32_t>& cu) {
  Plan plan;
  std::vector<int64_t> positions, slots;
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> shapes;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto& span = spans[i];
    for (int64_t t = 0; t < span.count; ++t) positions.push_back(span.past + t);
    cache.appendSlots(span, span.past, span.past + span.count, slots);
    if (span.count == 1) {
      plan.decodes.push_back(&span);
      plan.decodeRows.push_back(cu[i]);
    } else {
      shapes[{span.past, span.count}].push_back(i);
    }
  }
  for (const auto& [shape, members] : shapes) plan.prompts.push_back(planPrompts(cache, spans, cu, members));
  plan.positions = at::tensor(positions);
  plan.slots = at::tensor(slots);
  return plan;
}

// Rows [n * length, heads, D] as [n, heads, length, D].
at::Tensor byHead(const at::Tensor& rows, int64_t length) {
  return rows.unflatten(0, {-1, length}).transpose(1, 2);
}

// Stores the new keys and values of one layer, then attends. Gives [T, heads, D].
at::Tensor attend(const KvCache& cache, int64_t layer, const Plan& plan, const Qkv& qkv) {
  cache.keys(layer).index_copy_(0, plan.slots, qkv.k);
  cache.values(layer).index_copy_(0, plan.slots, qkv.v);
  const auto q = qkv.q.contiguous();
  const auto out = at::empty(q.sizes(), at::kFloat);
  decodeAttention(cache, layer, plan.decodes, plan.decodeRows, q, out);
  for (const auto& [past, count, rows, slots, mask] : plan.prompts) {
    const auto attended = at::scaled_dot_product_attention(
        byHead(q.index_select(0, rows), count), byHead(cache.keys(layer).index_select(0, slots), past + count),
        byHead(cache.values(layer).index_select(0, slots), past + count),
        mask.defined() ? std::optional(mask) : std::nullopt, 0.0, !mask.defined(), std::nullopt, true);
    out.index_copy_(0, rows, attended.transpose(1, 2).flatten(0, 1));
  }
  return out;
}

}  // namespace

Sampler::Sampler(DecoderConfig config, std::vector<UnitDescription> units, int64_t pageSize, int64_t numPages)
    : config_(config), units_(std::move(units)), cache_(config_, pageSize, numPages) {
  for (const auto& unit : units_) {
    auto& weights = weights_.emplace_back();
    for (const auto& parameter : unit.parameters) {
      const auto tensor = at::empty(parameter.shape, at::kFloat);
      weights.set(parameter.role, tensor);
      parameters_.emplace_back(parameter.name, tensor);
    }
  }
}

void Sampler::load(const std::vector<TensorLocation>& tensors) {
  const auto located = locateParameters(units_, tensors);
  complete_ = false;
  for (size_t i = 0; i < located.size(); ++i) parameters_[i].second.copy_(mapTensor(located[i]));
  complete_ = true;
}

void Sampler::receive(ProcessGroup& transfer, const std::vector<std::string>& names) {
  std::map<std::string, at::Tensor> missing(parameters_.begin(), parameters_.end());
  std::vector<at::Tensor> targets;
  for (const auto& name : names) {
    const auto found = missing.extract(name);
    TORCH_CHECK(!found.empty(), "tensor '", name, "' is not of this model, or named twice: nothing was received");
    targets.push_back(found.mapped());
  }
  TORCH_CHECK(
      missing.empty(), missing.size(), " of the model's tensors are not named, such as '",
      missing.empty() ? "" : missing.begin()->first, "': nothing was received");
  complete_ = false;
  for (auto& target : targets) transfer.broadcast(target, 0);
  complete_ = true;
}

std::string Sampler::checksum() const {
  Checksum sum;
  for (const auto& [name, tensor] : parameters_) sum.update(tensor);
  return sum.hexadecimal();
}

void Sampler::check(const SamplerBatch& batch) const {
  TORCH_CHECK(complete_, "the sampler has no complete weights: load or receive them first");
  const size_t count = batch.sequences.size();
  TORCH_CHECK(
      count > 0 && batch.cu.size() == count + 1 && batch.draws.size() == count && batch.cu[0] == 0 &&
          batch.cu[count] == static_cast<int64_t>(batch.tokens.size()),
      "the arrays of a step do not fit together");
  std::unordered_set<int32_t> seen;
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK(seen.insert(batch.sequences[i]).second, "sequence ", batch.sequences[i], " is twice in one step");
    TORCH_CHECK(batch.cu[i + 1] > batch.cu[i], "sequence ", batch.sequences[i], " has no new token");
    checkDraw(batch.draws[i]);
  }
  for (const int32_t token : batch.tokens) {
    const bool known = token >= 0 && token < config_.vocabSize;
    TORCH_CHECK(known, "token ", token, " is not in the vocabulary of ", config_.vocabSize);
  }
}

std::vector<Choice> Sampler::step(const SamplerBatch& batch) {
  const c10::InferenceMode inference;
  check(batch);
  std::vector<int64_t> counts;
  for (size_t i = 0; i < batch.sequences.size(); ++i) counts.push_back(batch.cu[i + 1] - batch.cu[i]);
  const auto spans = cache_.extend(batch.sequences, counts);
  std::vector<Choice> choices(spans.size());
  try {
    const auto logits = lastLogits(batch, spans);
    const float* row = logits.const_data_ptr<float>();
    for (size_t i = 0; i < spans.size(); ++i, row += config_.vocabSize) {
      choices[i] = rowSampler_.choose(row, config_.vocabSize, batch.draws[i]);
      TORCH_CHECK(choices[i].token >= 0, "sequence ", spans[i].sequence, ": the logits are not finite");
    }
  } catch (...) {
    cache_.rollBack(spans);
    throw;
  }
  return choices;
}

// [B, V] after the last new token of each sequence.
at::Tensor Sampler::lastLogits(const SamplerBatch& batch, const std::vector<Span>& spans) const {
  const Plan plan = makePlan(cache_, spans, batch.cu);
  const Rotary rotary = rotaryTables(config_, plan.positions);
  const auto& embed = weights_.front()["embed"];
  auto hidden = embedTokens(embed, at::tensor(batch.tokens, at::kLong));
  for (int64_t layer = 0; layer < config_.numLayers; ++layer) {
    hidden = layerForward(weights_[layer + 1], config_, hidden, rotary, [&](const Qkv& qkv) {
      return attend(cache_, layer, plan, qkv);
    });
  }
  if (hidden.size(0) > static_cast<int64_t>(spans.size())) {
    hidden = hidden.index_select(0, at::tensor(std::vector<int64_t>(batch.cu.begin() + 1, batch.cu.end())).sub_(1));
  }
  const auto& head = weights_.back();
  return headLogits(config_, hidden, head["norm"], config_.tieWordEmbeddings ? embed : head["head"]).contiguous();
}

}  // namespace molt

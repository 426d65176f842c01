#include "core/flat.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "core/device.h"

namespace molt {

at::Tensor Slot::in(const at::Tensor& flat) const {
  return flat.narrow(0, offset, parameter.numel()).view(parameter.shape);
}

FlatLayout::FlatLayout(const std::vector<ParameterDescription>& parameters) {
  for (const auto& parameter : parameters) slots.push_back({parameter, 0});
  for (const bool decay : {true, false}) {
    for (auto& slot : slots) {
      if (slot.parameter.decay != decay) continue;
      slot.offset = size;
      size += slot.parameter.numel();
      auto merged = slot.parameter;
      merged.role = fusedRole(merged.role);
      if (!fused.empty() && fused.back().parameter.role == merged.role) {
        fused.back().parameter.shape[0] += merged.shape[0];
      } else {
        fused.push_back({merged, slot.offset});
      }
    }
    if (decay) decaySize = size;
  }
}

UnitWeights FlatLayout::weightsOf(const at::Tensor& flat) const {
  UnitWeights weights;
  for (const auto& slot : fused) weights.set(slot.parameter.role, slot.in(flat));
  return weights;
}

FlatShard::FlatShard(
    const std::vector<ParameterDescription>& parameters,
    std::shared_ptr<ProcessGroup> group,
    bool trainable,
    at::ScalarType dtype,
    bool deferReduce)
    : layout_(parameters),
      group_(std::move(group)),
      worldSize_(group_ ? group_->worldSize() : 1),
      dtype_(dtype),
      deferReduce_(deferReduce && worldSize_ > 1) {
  const int64_t size = (layout_.size + worldSize_ - 1) / worldSize_;
  data_ = at::zeros({size}, onDevice(at::kFloat));
  if (trainable) gradient_ = at::zeros_like(data_);
}

void FlatShard::adapt(std::shared_ptr<FlatShard> adapters, double scale) {
  adapters_ = std::move(adapters);
  scale_ = scale;
  for (const auto& weight : slots()) {
    const auto factor = [&](const std::string& kind) {
      const auto isIt = [&](const Slot& slot) { return slot.parameter.role == weight.parameter.role + kind; };
      return std::ranges::find_if(adapters_->slots(), isIt);
    };
    const auto a = factor("_lora_A"), b = factor("_lora_B"), none = adapters_->slots().end();
    if (a != none && b != none) adapted_.push_back({weight, *a, *b});
  }
}

std::shared_ptr<FlatShard> FlatShard::base() const {
  auto copy = std::make_shared<FlatShard>(*this);
  copy->adapters_ = nullptr;
  copy->adapted_.clear();
  return copy;
}

bool FlatShard::trains(const Slot& fused) const {
  const auto& role = fused.parameter.role;
  const auto isPart = [&](const Adapted& part) { return fusedRole(part.weight.parameter.role) == role; };
  return gradient_.defined() || std::ranges::any_of(adapted_, isPart);
}

int64_t FlatShard::decaySize() const {
  return std::clamp<int64_t>(layout_.decaySize - shardBegin(), 0, data_.numel());
}

int64_t FlatShard::shardBegin() const {
  return group_ ? group_->rank() * data_.numel() : 0;
}

at::Tensor FlatShard::gather(const at::Tensor& slice) const {
  if (worldSize_ == 1) return slice;
  auto flat = at::empty({worldSize_ * slice.numel()}, slice.options());
  group_->allGather(flat, slice);
  return flat;
}

at::Tensor FlatShard::withAdapters(const at::Tensor& flat, at::ScalarType dtype) const {
  if (adapted_.empty()) return flat;
  const auto sum = worldSize_ == 1 ? flat.clone() : flat;
  const auto factors = adapters_->gather(adapters_->data());
  for (const auto& [weight, a, b] : adapted_) weight.in(sum).addmm_(b.in(factors), a.in(factors), 1, scale_);
  return sum.to(dtype);
}

at::Tensor FlatShard::gatherWeights(at::ScalarType dtype) const {
  return withAdapters(gather(adapted_.empty() ? data_.to(dtype) : data_), dtype);
}

at::Tensor FlatShard::gatherWeights() {
  if (!ahead_.wait) return gatherWeights(dtype_);
  const auto ahead = std::exchange(ahead_, {});
  ahead.wait();
  return withAdapters(ahead.flat, dtype_);
}

void FlatShard::prefetch() {
  if (worldSize_ == 1 || ahead_.wait) return;
  const auto slice = adapted_.empty() ? data_.to(dtype_) : data_;
  ahead_.flat = at::empty({worldSize_ * slice.numel()}, slice.options());
  ahead_.wait = group_->startAllGather(ahead_.flat, slice);
}

at::Tensor FlatShard::local(const at::Tensor& slice, const Slot& slot) const {
  const int64_t begin = std::clamp<int64_t>(slot.offset - shardBegin(), 0, slice.numel());
  const int64_t end = std::clamp<int64_t>(slot.offset + slot.parameter.numel() - shardBegin(), 0, slice.numel());
  return slice.narrow(0, begin, end - begin);
}

void FlatShard::scatter(const at::Tensor& slice, const Slot& slot, const at::Tensor& value) const {
  auto mine = local(slice, slot);
  const int64_t skipped = std::max<int64_t>(shardBegin() - slot.offset, 0);
  if (mine.numel() > 0) mine.copy_(value.reshape({-1}).narrow(0, skipped, mine.numel()));
}

at::Tensor FlatShard::openGradient() {
  if (worldSize_ == 1 && gradient_.defined()) return gradient_;
  if (deferred_.defined()) return deferred_;
  const auto buffer = at::zeros({worldSize_ * data_.numel()}, data_.options());
  if (deferReduce_ && gradient_.defined()) deferred_ = buffer;
  return buffer;
}

void FlatShard::reduceGradient(const at::Tensor& buffer) {
  if (adapters_) {
    const auto factors = adapters_->gather(adapters_->data());
    const auto gradient = adapters_->openGradient();
    for (const auto& [weight, a, b] : adapted_) {
      const auto d = weight.in(buffer);
      a.in(gradient).addmm_(b.in(factors).t(), d, 1, scale_);
      b.in(gradient).addmm_(d, a.in(factors).t(), 1, scale_);
    }
    return adapters_->reduceGradient(gradient);
  }
  if (worldSize_ > 1 && !deferReduce_) group_->startSum(gradient_, buffer);
}

void FlatShard::reduceDeferred() {
  if (deferred_.defined()) group_->startSum(gradient_, std::exchange(deferred_, {}));
}

void FlatShard::finishReduce() {
  if (worldSize_ > 1) group_->finishSum();
}

void FlatShard::zeroGradient() {
  finishReduce();
  gradient_.zero_();
  deferred_.reset();
}

}  // namespace molt

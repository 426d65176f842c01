#include "core/flat.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace molt {

at::Tensor Slot::in(const at::Tensor& flat) const {
  return flat.narrow(0, offset, parameter.numel()).view(parameter.shape);
}

FlatLayout::FlatLayout(const UnitDescription& unit) {
  for (const auto& parameter : unit.parameters) slots.push_back({parameter, 0});
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
    const UnitDescription& unit, std::shared_ptr<ProcessGroup> group, bool trainable, at::ScalarType dtype)
    : layout_(unit), group_(std::move(group)), worldSize_(group_ ? group_->worldSize() : 1), dtype_(dtype) {
  const int64_t size = (layout_.size + worldSize_ - 1) / worldSize_;
  data_ = at::zeros({size}, at::kFloat);
  if (trainable) gradient_ = at::zeros({size}, at::kFloat);
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

at::Tensor FlatShard::openGradient() const {
  return worldSize_ == 1 ? gradient_ : at::zeros({worldSize_ * gradient_.numel()}, at::kFloat);
}

void FlatShard::reduceGradient(const at::Tensor& buffer) {
  if (worldSize_ == 1) return;
  auto mine = at::empty_like(gradient_);
  group_->reduceScatter(mine, buffer);
  gradient_.add_(mine);
}

}  // namespace molt

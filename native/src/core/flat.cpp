#include "core/flat.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace molt {

FlatShard::FlatShard(
    const UnitDescription& unit, std::shared_ptr<ProcessGroup> group, bool trainable, at::ScalarType dtype)
    : group_(std::move(group)), worldSize_(group_ ? group_->worldSize() : 1), dtype_(dtype) {
  for (const auto& parameter : unit.parameters) slots_.push_back({parameter, 0});
  int64_t total = 0;
  int64_t decayEnd = 0;
  for (const bool decay : {true, false}) {
    for (auto& slot : slots_) {
      if (slot.parameter.decay != decay) continue;
      slot.offset = total;
      total += slot.parameter.numel();
    }
    if (decay) decayEnd = total;
  }
  const int64_t size = (total + worldSize_ - 1) / worldSize_;
  data_ = at::zeros({size}, at::kFloat);
  if (trainable) gradient_ = at::zeros({size}, at::kFloat);
  decaySize_ = std::clamp<int64_t>(decayEnd - shardBegin(), 0, size);
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

at::Tensor FlatShard::view(const at::Tensor& flat, const Slot& slot) {
  return flat.narrow(0, slot.offset, slot.parameter.numel()).view(slot.parameter.shape);
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

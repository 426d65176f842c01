#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/decoder.h"
#include "core/process_group.h"

namespace molt {

/// The float32 parameters of one unit, laid end to end and cut into equal slices over the ranks of a group (padded with
/// zeros to a multiple of their number). Parameters with weight decay come first, so that a slice has two runs at most.
/// Methods marked collective must be called by every rank in the same order.
class FlatShard {
 public:
  struct Slot {
    ParameterDescription parameter;
    int64_t offset;  // in the whole flat buffer
  };

  /// dtype: what the unit computes in.
  FlatShard(
      const UnitDescription& unit, std::shared_ptr<ProcessGroup> group, bool trainable, at::ScalarType dtype);

  /// In the description's order, which is not the layout's.
  const std::vector<Slot>& slots() const { return slots_; }
  /// This rank's slice, [shardSize].
  const at::Tensor& data() const { return data_; }
  /// Its gradient; undefined where not trainable.
  const at::Tensor& gradient() const { return gradient_; }
  /// Leading values of this rank's slice that decay.
  int64_t decaySize() const { return decaySize_; }

  /// All slices of `slice` (the data or the gradient), [paddedSize]. Without a group, the slice itself. Collective.
  at::Tensor gather(const at::Tensor& slice) const;
  /// The data gathered in the compute dtype. Collective.
  at::Tensor gatherWeights() const { return gather(data_.to(dtype_)); }
  /// One parameter within what was gathered.
  static at::Tensor view(const at::Tensor& flat, const Slot& slot);
  /// Copies this rank's part of the whole parameter `value` (any floating dtype) into `slice`.
  void scatter(const at::Tensor& slice, const Slot& slot, const at::Tensor& value) const;
  /// This rank's part of one parameter within `slice`; may be empty.
  at::Tensor local(const at::Tensor& slice, const Slot& slot) const;

  /// A buffer for the whole gradient of one backward pass, to be added into and then given to `reduce`.
  at::Tensor openGradient() const;
  /// Adds the buffer, summed over ranks, to this rank's gradient. Collective.
  void reduceGradient(const at::Tensor& buffer);

 private:
  int64_t shardBegin() const;

  std::vector<Slot> slots_;
  std::shared_ptr<ProcessGroup> group_;
  int64_t worldSize_;
  at::ScalarType dtype_;
  at::Tensor data_;
  at::Tensor gradient_;
  int64_t decaySize_ = 0;
};

}  // namespace molt

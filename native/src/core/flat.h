#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/decoder.h"
#include "core/process_group.h"

namespace molt {

/// One parameter's place in a unit's flat buffer.
struct Slot {
  ParameterDescription parameter;
  int64_t offset;

  at::Tensor in(const at::Tensor& flat) const;
};

/// The parameters of one unit laid end to end. Those with weight decay come first, so that a slice has two runs at
/// most; within each run the description's order holds, so that what is multiplied together lies together.
struct FlatLayout {
  explicit FlatLayout(const std::vector<ParameterDescription>& parameters);
  /// By fused role.
  UnitWeights weightsOf(const at::Tensor& flat) const;

  std::vector<Slot> slots;  // in the description's order, which is not the layout's
  std::vector<Slot> fused;  // named by fused role
  int64_t size = 0;
  int64_t decaySize = 0;
};

/// The float32 parameters of one unit, cut into equal slices over the ranks of a group (padded with zeros to a multiple
/// of their number). Methods marked collective must be called by every rank in the same order.
class FlatShard {
 public:
  /// dtype: what the unit computes in. deferReduce: whole gradients are kept until `reduceDeferred`.
  FlatShard(
      const std::vector<ParameterDescription>& parameters,
      std::shared_ptr<ProcessGroup> group,
      bool trainable,
      at::ScalarType dtype,
      bool deferReduce);

  /// From here on what is gathered has the adapters' products added, and gradients go to the adapters alone.
  void adapt(std::shared_ptr<FlatShard> adapters, double scale);
  /// The same data without them.
  std::shared_ptr<FlatShard> base() const;
  /// Whether backward gives this fused weight a gradient; whether any.
  bool trains(const Slot& fused) const;
  bool trains() const { return gradient_.defined() || !adapted_.empty(); }

  /// Null where there are none.
  const std::shared_ptr<FlatShard>& adapters() const { return adapters_; }
  const FlatLayout& layout() const { return layout_; }
  const std::vector<Slot>& slots() const { return layout_.slots; }
  /// This rank's slice, [shardSize].
  const at::Tensor& data() const { return data_; }
  /// Its gradient; undefined where not trainable.
  const at::Tensor& gradient() const { return gradient_; }
  /// Leading values of this rank's slice that decay.
  int64_t decaySize() const;

  /// All slices of `slice` (the data or the gradient), [paddedSize]. Without a group, the slice itself. Collective.
  at::Tensor gather(const at::Tensor& slice) const;
  /// What is computed with: the data, with its adapters' products, summed in float32 and then rounded. Collective.
  at::Tensor gatherWeights(at::ScalarType dtype) const;
  /// In the compute dtype; where `prefetch` began it, it only waits.
  at::Tensor gatherWeights();
  /// Collective, as the gather that it begins.
  void prefetch();
  /// Copies this rank's part of the whole parameter `value` (any floating dtype) into `slice`.
  void scatter(const at::Tensor& slice, const Slot& slot, const at::Tensor& value) const;
  /// This rank's part of one parameter within `slice`; may be empty.
  at::Tensor local(const at::Tensor& slice, const Slot& slot) const;

  /// A buffer for the whole gradient of one backward pass, to be added into and then given to `reduceGradient`.
  at::Tensor openGradient();
  /// Begins to add the buffer, summed over ranks, to this rank's gradient, or to its adapters'. Collective, unless
  /// deferred.
  void reduceGradient(const at::Tensor& buffer);
  /// Begins to add what was deferred. Collective.
  void reduceDeferred();
  /// Adds what was begun: until then the gradient is not whole. Collective.
  void finishReduce();
  void zeroGradient();

 private:
  /// A weight's place here, and its factors' in the adapters.
  struct Adapted {
    Slot weight, a, b;
  };
  /// A gather under way.
  struct Ahead {
    at::Tensor flat;
    std::function<void()> wait;
  };
  int64_t shardBegin() const;
  /// `flat` with the adapters' products, in `dtype`.
  at::Tensor withAdapters(const at::Tensor& flat, at::ScalarType dtype) const;

  const FlatLayout layout_;
  std::shared_ptr<ProcessGroup> group_;
  int64_t worldSize_;
  at::ScalarType dtype_;
  at::Tensor data_;
  at::Tensor gradient_;
  bool deferReduce_;
  at::Tensor deferred_;  // whole gradient of several passes, where there is one
  Ahead ahead_;
  std::shared_ptr<FlatShard> adapters_;
  std::vector<Adapted> adapted_;
  double scale_ = 1;
};

using Shards = std::vector<std::shared_ptr<FlatShard>>;

}  // namespace molt

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/decoder.h"
#include "core/flat.h"

namespace molt {

/// A unit's maths for rows begin.. of its input; returns one tensor with a row for each of the input's. Where
/// `gradientsOnly`, only the graph is wanted: the values may be left out.
using UnitBody =
    std::function<at::Tensor(const UnitWeights&, const at::Tensor& input, int64_t begin, bool gradientsOnly)>;

struct UnitOptions {
  /// Rows of the input run at a time, forward and backward, so that nothing larger is held; 0 runs all at once.
  int64_t chunk = 0;
  /// Keeps forward's weights instead of gathering again.
  bool keepWeights = false;
  /// And its graph instead of recomputing; not with chunks.
  bool keepGraph = false;
  /// What the unit after this one gathers in forward, and what the one before it gathers in backward: begun before this
  /// one computes.
  Shards after, before;
};
/// Runs a unit as one autograd function. Forward gathers the shards' weights, runs without a graph and frees; only the
/// input is saved. Backward gathers again, recomputes with a graph, and reduces the weights' gradients into the shards,
/// which autograd never sees: `input` must require a gradient for backward to reach the unit. Collective in both.
at::Tensor runUnit(Shards shards, UnitBody body, const at::Tensor& input, UnitOptions options);

/// The first unit: rows of its matrix, float32 [T, H]. The gradient of a row goes straight to its place in the shard,
/// in float32: a dense one of the whole matrix is never made. `anchor` requires a gradient where backward is to come
/// here. tokens: int64 [T]. Collective in both.
at::Tensor runEmbedding(
    std::shared_ptr<FlatShard> shard, const at::Tensor& tokens, const at::Tensor& anchor, Shards after);

}  // namespace molt

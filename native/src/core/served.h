#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/decoder.h"
#include "core/projection.h"

namespace molt {

/// A decoder's weights as generation wants them: projections of one input fused and packed. The maths is decoder.h's;
/// matmuls and attention are of `dtype`, norms, rotations and the residual stream float32.
class ServedWeights {
 public:
  /// plain: ATen's operators throughout.
  ServedWeights(
      const DecoderConfig& config, const std::vector<UnitDescription>& units, at::ScalarType dtype, bool plain);

  /// Every parameter by name, in the units' order; values go in here, followed by `pack`.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  void pack();

  /// tokens: int64 [T]. Gives [T, H].
  at::Tensor embed(const at::Tensor& tokens) const;
  /// [T, H] to [T, H]. Queries and keys reach `attention` in float32; it gives [T, numHeads, D].
  at::Tensor layer(
      int64_t index, const at::Tensor& hidden, const Rotary& rotary, const Attention& attention) const;
  /// hidden: [N, H]. Gives [N, V], contiguous.
  at::Tensor logits(const at::Tensor& hidden) const;

 private:
  struct Layer {
    UnitWeights norms;
    Projection qkv, o, gateUp, down;
  };
  using Places = std::unordered_map<std::string, at::Tensor>;
  Projection fuse(const UnitDescription& unit, const std::vector<std::string>& roles, Places& places) const;
  Qkv project(const Layer& layer, const at::Tensor& hidden, const Rotary& rotary) const;

  const DecoderConfig config_;
  const at::ScalarType dtype_;
  const bool plain_;
  at::Tensor embed_;  // [V, H]
  std::vector<Layer> layers_;
  at::Tensor norm_;
  Projection head_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

}  // namespace molt

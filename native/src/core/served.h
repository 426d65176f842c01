#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "core/decoder.h"
#include "core/projection.h"

namespace molt {

/// A decoder's weights as generation wants them: whole, of one dtype, matrices packed. The maths is decoder.h's.
class ServedWeights {
 public:
  /// plain: ATen's products throughout.
  ServedWeights(
      const DecoderConfig& config, const std::vector<UnitDescription>& units, at::ScalarType dtype, bool plain);

  /// Every parameter by name, in the units' order; values go in here, followed by `pack`.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  void pack();

  /// tokens: int64 [T]. Gives float32 [T, H].
  at::Tensor embed(const at::Tensor& tokens) const;
  /// [T, H] to [T, H]. Of a mixture, adds the chosen experts to `routes`, int64 [T, K].
  at::Tensor layer(
      int64_t index,
      const at::Tensor& hidden,
      const Rotary& rotary,
      const Attention& attention,
      std::vector<at::Tensor>& routes) const;
  /// hidden: [N, H]. Gives float32 [N, V], contiguous, on the CPU, where tokens are chosen.
  at::Tensor logits(const at::Tensor& hidden) const;

 private:
  struct Unit {
    UnitWeights weights;
    std::vector<std::pair<std::string, Projection>> projections;  // by fused role
    std::vector<Projection> gateUps, downs;                        // by expert

    at::Tensor product(const std::string& role, const at::Tensor& x) const;
    at::Tensor runExperts(const at::Tensor& rows, const at::Tensor& counts) const;
  };

  const DecoderConfig config_;
  std::vector<Unit> units_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

}  // namespace molt

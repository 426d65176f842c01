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

  /// Every parameter by name, in the units' order.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  /// New values: each parameter's are put, in any order, then `finish` makes it whole. A unit is packed when all of it
  /// is there, while others may yet come; the head, whose matrix may be the first unit's, at the end.
  void begin();
  void put(size_t parameter, const at::Tensor& values);
  void finish();

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
    size_t parameters = 0, missing = 0;

    void pack();
    at::Tensor product(const std::string& role, const at::Tensor& x) const;
    at::Tensor runExperts(const at::Tensor& rows, const at::Tensor& counts) const;
  };

  const DecoderConfig config_;
  std::vector<Unit> units_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<size_t> unitOf_;  // of each parameter
};

}  // namespace molt

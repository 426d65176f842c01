#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "core/decoder.h"

namespace molt {

/// Selective checkpointing of one layer: what forward computes here is kept, and once taken `again`, with gradients as
/// if it had been recomputed: outputs of products, and attention with what its backward needs.
class Kept {
 public:
  /// x · weightᵀ + bias (or undefined), kept under `role`.
  at::Tensor product(
      const std::string& role, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool again);
  at::Tensor attention(const Attention& attend, const Qkv& qkv, bool again);

 private:
  std::map<std::string, at::Tensor> products_;
  std::vector<at::Tensor> inputs_;  // of attention, leaves of its graph
  at::Tensor attended_;
};

}  // namespace molt

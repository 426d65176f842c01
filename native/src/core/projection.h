#pragma once

#include <ATen/core/Tensor.h>

namespace molt {

/// x · weightᵀ + bias for generation. oneDNN multiplies faster with a copy of the matrix laid out for the processor;
/// `plain` is ATen on the matrix itself: the reference, and what is taken where packing does not pay.
class Projection {
 public:
  Projection() = default;
  /// weight: [out, in]; bias: [out] or undefined. Both are filled later, in place.
  Projection(at::Tensor weight, at::Tensor bias, bool plain);

  /// Call after the matrix has changed.
  void pack();
  /// x: [T, in] of the weight's dtype. Gives [T, out].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_, bias_, packed_;
  bool packs_ = false;
};

}  // namespace molt

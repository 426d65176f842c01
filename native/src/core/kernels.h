#pragma once

#include <ATen/core/Tensor.h>

// Hand-written float32 loops for the CPU where ATen would make a pass over memory for every step of a formula. Both are
// differentiable in their tensors of values; decoder.cpp says what they compute.
namespace molt {

/// x: [..., size]; weight: [size].
at::Tensor fusedRmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// x: [T, heads, D]; cos and sin: [T, 1, D], whose halves are equal.
at::Tensor fusedRotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace molt

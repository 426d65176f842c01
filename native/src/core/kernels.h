#pragma once

#include <ATen/core/Tensor.h>

// Loops by hand for the CPU where ATen would make a pass over memory for every step of a formula. All are
// differentiable in their tensors of values; decoder.cpp and model.cpp say what they compute.
namespace molt {

/// x: float32 [..., size]; weight: [size]. The result is of the weight's dtype.
at::Tensor fusedRmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// x: [T, heads, D], heads side by side; cos and sin: float32 [T, 1, D], whose halves are equal.
at::Tensor fusedRotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// logits: [N, V], before temperature, whose place their gradient takes; temperatures: float32 [N, 1]; targets:
/// int64 [N]. Gives float32 [N, 2].
at::Tensor fusedScores(const at::Tensor& logits, const at::Tensor& temperatures, const at::Tensor& targets);

}  // namespace molt

#pragma once

#include <ATen/core/Tensor.h>

namespace molt {

/// Where models and samplers keep their tensors: the first GPU in sight where libtorch has CUDA, else the CPU.
/// `MOLT_DEVICE` decides otherwise: `cpu`, or `cuda`, which throws where there is none.
at::Device computeDevice();

inline at::TensorOptions onDevice(at::ScalarType dtype) { return at::TensorOptions(dtype).device(computeDevice()); }

}  // namespace molt

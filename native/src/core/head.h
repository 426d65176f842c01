#pragma once

#include <ATen/core/Tensor.h>

namespace molt {

/// Log-probability of each row's target and entropy of its distribution, [N, 2], differentiable in `logits`.
/// logits: [N, V], after temperature; targets: int64 [N].
/// One function, because autograd over log_softmax, gather and exp would hold three more tensors of [N, V].
at::Tensor scoreTargets(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace molt

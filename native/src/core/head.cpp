#include "core/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ScoreTargets : public torch::autograd::Function<ScoreTargets> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets) {
    const auto all = at::log_softmax(logits, -1);
    const auto logp = all.gather(1, targets.unsqueeze(1)).squeeze(1);
    const auto entropy = all.exp().mul_(all).sum(-1).neg_();
    context->save_for_backward({all, targets, entropy});
    return at::stack({logp, entropy}, 1);
  }

  /// d logp / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy).
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& [all, targets, entropy] = std::tie(saved[0], saved[1], saved[2]);
    const auto logpGradient = gradients[0].select(1, 0).unsqueeze(1);
    const auto entropyGradient = gradients[0].select(1, 1).unsqueeze(1);
    const auto p = all.exp();
    auto result = p * -logpGradient;
    // A loss without an entropy term, the usual case, skips three passes over [N, V].
    if (entropyGradient.count_nonzero().item<int64_t>() > 0) {
      result -= (all + entropy.unsqueeze(1)).mul_(p).mul_(entropyGradient);
    }
    result.scatter_add_(1, targets.unsqueeze(1), logpGradient);
    return {result, at::Tensor()};
  }
};

}  // namespace

at::Tensor scoreTargets(const at::Tensor& logits, const at::Tensor& targets) {
  return ScoreTargets::apply(logits, targets);
}

}  // namespace molt

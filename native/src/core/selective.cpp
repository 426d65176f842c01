#include "core/selective.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class KnownProduct : public torch::autograd::Function<KnownProduct> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const at::Tensor& value) {
    context->save_for_backward({x, weight});
    return value.detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& d = gradients[0];
    const auto weight = context->needs_input_grad(1) ? d.t().mm(saved[0]) : at::Tensor();
    const auto bias = context->needs_input_grad(2) ? d.sum(0) : at::Tensor();
    return {d.mm(saved[1]), weight, bias, at::Tensor()};
  }
};

/// `inputs` and `value` are the ends of a graph of their own, which backward runs through.
struct Recorded : torch::CustomClassHolder {
  variable_list inputs;
  at::Tensor value;
};

class KnownAttention : public torch::autograd::Function<KnownAttention> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      c10::intrusive_ptr<Recorded> recorded) {
    const auto value = recorded->value.detach();
    context->saved_data["recorded"] = c10::IValue::make_capsule(std::move(recorded));
    return value;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = context->saved_data["recorded"].toCapsule();
    const auto& recorded = static_cast<const Recorded&>(*holder);
    auto result = torch::autograd::grad(
        {recorded.value}, recorded.inputs, {gradients[0]}, /*retain_graph=*/false, /*create_graph=*/false,
        /*allow_unused=*/true);
    result.emplace_back();
    return result;
  }
};

}  // namespace

at::Tensor Kept::product(
    const std::string& role, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool again) {
  const auto present = bias.defined() ? std::optional(bias) : std::nullopt;
  if (again) return KnownProduct::apply(x, weight, present, products_.extract(role).mapped());
  return products_[role] = at::linear(x, weight, bias);
}

at::Tensor Kept::attention(const Attention& attend, const Qkv& qkv, bool again) {
  if (!again) {
    const at::AutoGradMode graph(true);
    for (const auto& x : {qkv.q, qkv.k, qkv.v}) inputs_.push_back(x.detach().set_requires_grad(true));
    attended_ = attend({inputs_[0], inputs_[1], inputs_[2]});
    return attended_.detach();
  }
  auto recorded = c10::make_intrusive<Recorded>();
  recorded->inputs = std::exchange(inputs_, {});
  recorded->value = std::exchange(attended_, {});
  return KnownAttention::apply(qkv.q, qkv.k, qkv.v, std::move(recorded));
}

}  // namespace molt

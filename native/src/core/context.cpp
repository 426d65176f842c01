#include "core/context.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Exchange : torch::CustomClassHolder {
  KeyOrder order;
  std::shared_ptr<ProcessGroup> group;

  /// [most, ...] or the parts of all ranks, [ranks * most, ...]; like `x` beyond.
  at::Tensor room(const at::Tensor& x, at::ScalarType dtype, int64_t parts) const {
    auto shape = x.sizes().vec();
    shape[0] = parts * order.most;
    return at::zeros(shape, x.options().dtype(dtype));
  }
};

class GatherKeys : public torch::autograd::Function<GatherKeys> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& mine, c10::intrusive_ptr<Exchange> exchange) {
    const auto padded = exchange->room(mine, mine.scalar_type(), 1);
    const auto parts = exchange->room(mine, mine.scalar_type(), exchange->group->worldSize());
    padded.narrow(0, 0, mine.size(0)).copy_(mine);
    exchange->group->allGather(parts, padded);
    context->saved_data["rows"] = mine.size(0);
    const auto whole = parts.index_select(0, exchange->order.places);
    context->saved_data["exchange"] = c10::IValue::make_capsule(std::move(exchange));
    return whole;
  }

  /// In float32, as many ranks' gradients are summed.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = context->saved_data["exchange"].toCapsule();
    const auto& exchange = static_cast<const Exchange&>(*holder);
    const auto& whole = gradients[0];
    const auto parts = exchange.room(whole, at::kFloat, exchange.group->worldSize());
    parts.index_copy_(0, exchange.order.places, whole.to(at::kFloat));
    const auto mine = exchange.group->startReduceScatter(parts)();
    const auto own = mine.narrow(0, 0, context->saved_data["rows"].toInt());
    return {own.to(whole.scalar_type()), at::Tensor()};
  }
};

class GatherScores : public torch::autograd::Function<GatherScores> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& scores, const std::shared_ptr<ProcessGroup>& group) {
    auto whole = scores.clone();
    group->allReduce(whole);
    return whole;
  }

  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

Qkv gatherKeys(const Qkv& qkv, const KeyOrder& order, std::shared_ptr<ProcessGroup> group) {
  auto exchange = c10::make_intrusive<Exchange>();
  exchange->order = order;
  exchange->group = std::move(group);
  const auto whole = GatherKeys::apply(at::cat({qkv.k, qkv.v}, 1), std::move(exchange)).chunk(2, 1);
  return {qkv.q, whole[0], whole[1]};
}

at::Tensor gatherScores(const at::Tensor& scores, const std::shared_ptr<ProcessGroup>& group) {
  return GatherScores::apply(scores, group);
}

}  // namespace molt

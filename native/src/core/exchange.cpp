#include "core/exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Route : torch::CustomClassHolder {
  std::vector<int64_t> sent, received;
  std::shared_ptr<ProcessGroup> group;
};

at::Tensor exchange(
    const at::Tensor& rows,
    const std::vector<int64_t>& sent,
    const std::vector<int64_t>& received,
    ProcessGroup& group) {
  auto shape = rows.sizes().vec();
  shape[0] = std::reduce(received.begin(), received.end());
  auto result = at::empty(shape, rows.options());
  group.allToAll(result, rows.contiguous(), received, sent);
  return result;
}

class Exchange : public torch::autograd::Function<Exchange> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, c10::intrusive_ptr<Route> route) {
    auto result = exchange(rows, route->sent, route->received, *route->group);
    context->saved_data["route"] = c10::IValue::make_capsule(std::move(route));
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = context->saved_data["route"].toCapsule();
    const auto& route = static_cast<const Route&>(*holder);
    return {exchange(gradients[0], route.received, route.sent, *route.group), at::Tensor()};
  }
};

at::Tensor send(
    const at::Tensor& rows,
    const std::vector<int64_t>& sent,
    const std::vector<int64_t>& received,
    std::shared_ptr<ProcessGroup> group) {
  auto route = c10::make_intrusive<Route>();
  route->sent = sent;
  route->received = received;
  route->group = std::move(group);
  return Exchange::apply(rows, std::move(route));
}

/// Of an int64 tensor.
std::vector<int64_t> toVector(const at::Tensor& values) {
  const auto host = values.cpu();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

}  // namespace

ExchangePlan planExchange(const at::Tensor& counts, ProcessGroup& group) {
  const int64_t ranks = group.worldSize(), own = counts.size(0) / ranks;
  const std::vector<int64_t> runs(ranks, own);
  // [rank, own expert]
  const auto given = counts.view({ranks, own}), taken = exchange(counts, runs, runs, group).cpu().view({ranks, own});
  // Received rows lie by rank, then by expert.
  const auto experts = at::arange(own).repeat({ranks}).repeat_interleave(taken.flatten());
  const auto order = experts.argsort(/*stable=*/true).to(counts.device());
  return {toVector(given.sum(1)), toVector(taken.sum(1)), taken.sum(0).to(counts.device()), order, order.argsort()};
}

at::Tensor sendToExperts(const at::Tensor& rows, const ExchangePlan& plan, std::shared_ptr<ProcessGroup> group) {
  return send(rows, plan.sent, plan.received, std::move(group)).index_select(0, plan.order);
}

at::Tensor sendFromExperts(const at::Tensor& rows, const ExchangePlan& plan, std::shared_ptr<ProcessGroup> group) {
  return send(rows.index_select(0, plan.back), plan.received, plan.sent, std::move(group));
}

}  // namespace molt

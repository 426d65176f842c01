#include "core/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
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

}  // namespace

ExchangePlan planExchange(const at::Tensor& counts, ProcessGroup& group) {
  const int64_t ranks = group.worldSize(), own = counts.size(0) / ranks;
  const std::vector<int64_t> runs(ranks, own);
  // [rank, own expert]
  const auto given = counts.view({ranks, own}), taken = exchange(counts, runs, runs, group).cpu().view({ranks, own});
  const auto from = taken.accessor<int64_t, 2>();
  ExchangePlan plan;
  plan.counts = taken.sum(0).to(counts.device());
  plan.received.resize(ranks);
  std::vector<int64_t> begins;  // of each (rank, own expert) among the received rows
  int64_t total = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    plan.sent.push_back(given[rank].sum().item<int64_t>());
    for (int64_t expert = 0; expert < own; ++expert) {
      begins.push_back(total);
      total += from[rank][expert];
      plan.received[rank] += from[rank][expert];
    }
  }
  std::vector<int64_t> order, back(total);
  for (int64_t expert = 0; expert < own; ++expert) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t i = 0; i < from[rank][expert]; ++i) {
        back[begins[rank * own + expert] + i] = static_cast<int64_t>(order.size());
        order.push_back(begins[rank * own + expert] + i);
      }
    }
  }
  plan.order = at::tensor(order, at::kLong).to(counts.device());
  plan.back = at::tensor(back, at::kLong).to(counts.device());
  return plan;
}

at::Tensor sendToExperts(const at::Tensor& rows, const ExchangePlan& plan, std::shared_ptr<ProcessGroup> group) {
  return send(rows, plan.sent, plan.received, std::move(group)).index_select(0, plan.order);
}

at::Tensor sendFromExperts(const at::Tensor& rows, const ExchangePlan& plan, std::shared_ptr<ProcessGroup> group) {
  return send(rows.index_select(0, plan.back), plan.received, plan.sent, std::move(group));
}

}  // namespace molt

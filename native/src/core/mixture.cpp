#include "core/mixture.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// On the CPU grouped products are slower than one after the other; elsewhere they are of bfloat16 alone, and of rows.
bool isGrouped(const at::Tensor& x) {
  return !x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.numel() > 0;
}

at::Tensor ends(const at::Tensor& counts) {
  return counts.cumsum(0, at::kInt);
}

/// Each expert's rows of x [N, A] times its matrix of [E, A, B].
at::Tensor multiplyRows(const at::Tensor& x, const at::Tensor& matrices, const at::Tensor& counts) {
  if (isGrouped(x)) return at::_grouped_mm(x, matrices, ends(counts));
  auto y = at::empty({x.size(0), matrices.size(2)}, x.options());
  forEachExpert(counts, [&](int64_t expert, int64_t begin, int64_t count) {
    auto out = y.narrow(0, begin, count);
    at::mm_out(out, x.narrow(0, begin, count), matrices[expert]);
  });
  return y;
}

/// Of each expert's rows the products aᵀ · b, [E, A, B]. a: [N, A]; b: [N, B].
at::Tensor multiplyColumns(const at::Tensor& a, const at::Tensor& b, const at::Tensor& counts) {
  if (isGrouped(a)) return at::_grouped_mm(a.t(), b, ends(counts));
  const auto y = at::zeros({counts.size(0), a.size(1), b.size(1)}, a.options());
  forEachExpert(counts, [&](int64_t expert, int64_t begin, int64_t count) {
    auto out = y[expert];
    at::mm_out(out, a.narrow(0, begin, count).t(), b.narrow(0, begin, count));
  });
  return y;
}

/// x · weightᵀ of each row's expert, [N, O]. x: [N, I], sorted by expert; weights: [E, O, I].
class ExpertProduct : public torch::autograd::Function<ExpertProduct> {
 public:
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& x, const at::Tensor& weights, const at::Tensor& counts) {
    context->save_for_backward({x, weights, counts});
    return multiplyRows(x, weights.transpose(1, 2), counts);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto d = gradients[0].contiguous();
    const auto weightGradient =
        context->needs_input_grad(1) ? multiplyColumns(d, saved[0], saved[2]) : at::Tensor();
    return {multiplyRows(d, saved[1], saved[2]), weightGradient, at::Tensor()};
  }
};

/// x itself, to whose gradient another is added.
class AddGradient : public torch::autograd::Function<AddGradient> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gradient) {
    context->save_for_backward({gradient});
    return x.detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0] + context->get_saved_variables()[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor routerProbabilities(const at::Tensor& x, const at::Tensor& router) {
  return at::linear(x.to(at::kFloat), router.to(at::kFloat)).softmax(-1);
}

at::Tensor likeliestExperts(const MoeConfig& config, const at::Tensor& probabilities) {
  return std::get<0>(std::get<1>(probabilities.detach().topk(config.expertsPerToken)).sort(-1));
}

at::Tensor mixExperts(
    const MoeConfig& config,
    const at::Tensor& x,
    const at::Tensor& probabilities,
    const at::Tensor& chosen,
    const Experts& experts) {
  auto weights = probabilities.gather(1, chosen);
  if (config.normTopkProb) weights = weights / weights.sum(1, true);
  const int64_t perToken = chosen.size(1);
  const auto flat = chosen.flatten();
  const auto order = flat.argsort(/*stable=*/true);
  // Copies in place of an indexed read of x: the gradient's sum over them is then exact and of one order.
  const auto copies = x.unsqueeze(1).expand({-1, perToken, -1}).flatten(0, 1);
  const auto outputs = experts(copies.index_select(0, order), flat.bincount({}, config.numExperts));
  const auto ofTokens = outputs.index_select(0, order.argsort()).to(at::kFloat).unflatten(0, {-1, perToken});
  return weights.unsqueeze(1).bmm(ofTokens).squeeze(1);
}

at::Tensor runExperts(
    const MoeConfig& config, const UnitWeights& weights, const at::Tensor& rows, const at::Tensor& counts) {
  const auto product = [&](const char* role, const at::Tensor& x) {
    return ExpertProduct::apply(x, weights[role].unflatten(0, {counts.size(0), -1}), counts);
  };
  return product("expert_down", gated(product("expert_gate_up", rows)));
}

void RouteTotals::sumOver(ProcessGroup& group) {
  const auto all = at::tensor(std::vector<double>{balance, double(differing), double(compared)}, at::kDouble);
  group.allReduce(all);
  const double* sums = all.const_data_ptr<double>();
  balance = sums[0];
  differing = static_cast<int64_t>(sums[1]);
  compared = static_cast<int64_t>(sums[2]);
}

void RouteTotals::add(const RouteTotals& other) {
  balance += other.balance;
  differing += other.differing;
  compared += other.compared;
}

MixturePass::MixturePass(
    const MoeConfig& config,
    const SortedRows& rows,
    int64_t index,
    std::shared_ptr<ProcessGroup> expertGroup,
    std::shared_ptr<ProcessGroup> contextGroup)
    : config_(config),
      expertGroup_(std::move(expertGroup)),
      contextGroup_(std::move(contextGroup)),
      recorded_(rows.routes.defined() ? rows.routes.select(1, index) : at::Tensor()),
      rowOf_(rows.rowOf),
      balanceScale_(rows.balanceScale) {}

at::Tensor MixturePass::run(const UnitWeights& weights, const at::Tensor& x) {
  auto probabilities = routerProbabilities(x, weights["router"]);
  const bool first = !chosen_.defined();
  if (first) choose(probabilities);
  if (balanceScale_.defined()) {
    const auto gradient = balanceGradient();
    if (first) totals_.balance = (probabilities.detach() * gradient).sum().item<double>();
    probabilities = AddGradient::apply(probabilities, gradient);
  }
  return mixExperts(config_, x, probabilities, chosen_, [&](const at::Tensor& rows, const at::Tensor& counts) {
    if (!expertGroup_) return runExperts(config_, weights, rows, counts);
    if (first) plan_ = planExchange(counts, *expertGroup_);
    const auto outputs = runExperts(config_, weights, sendToExperts(rows, plan_, expertGroup_), plan_.counts);
    return sendFromExperts(outputs, plan_, expertGroup_);
  });
}

void MixturePass::choose(const at::Tensor& probabilities) {
  const auto live = likeliestExperts(config_, probabilities);
  chosen_ = live;
  if (!recorded_.defined()) return;
  const auto isRecorded = (recorded_ >= 0).all(1, true);
  const auto differs = (recorded_.unsqueeze(2) != live.unsqueeze(1)).all(2);
  totals_.compared = isRecorded.sum().item<int64_t>() * config_.expertsPerToken;
  totals_.differing = (differs & isRecorded).sum().item<int64_t>();
  chosen_ = std::get<0>(at::where(isRecorded, recorded_, live).sort(-1));
}

// E · Σ f P of each row: f, the share of its choices that are an expert's, is a constant, and P the mean probability.
at::Tensor MixturePass::balanceGradient() const {
  const int64_t experts = config_.numExperts, rows = balanceScale_.size(0);
  const auto cells = rowOf_.unsqueeze(1) * experts + chosen_;
  const auto counts = cells.flatten().bincount({}, rows * experts).view({rows, experts});
  if (contextGroup_) contextGroup_->allReduce(counts);
  const double share = static_cast<double>(experts) / static_cast<double>(config_.expertsPerToken);
  return (counts * balanceScale_ * share).index_select(0, rowOf_);
}

}  // namespace molt

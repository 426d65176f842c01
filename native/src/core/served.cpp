#include "core/served.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/device.h"
#include "core/flat.h"
#include "core/mixture.h"

namespace molt {

ServedWeights::ServedWeights(
    const DecoderConfig& config, const std::vector<UnitDescription>& units, at::ScalarType dtype, bool plain)
    : config_(config) {
  for (const auto& description : units) {
    const FlatLayout layout(description.allParameters());
    const auto flat = at::empty({layout.size}, onDevice(dtype));
    for (const auto& slot : layout.slots) {
      parameters_.emplace_back(slot.parameter.name, slot.in(flat));
      unitOf_.push_back(units_.size());
    }
    auto& unit = units_.emplace_back();
    unit.weights = layout.weightsOf(flat);
    unit.parameters = layout.slots.size();
    const auto project = [&](const std::string& role, const at::Tensor& weight) {
      const auto* bias = unit.weights.find(role + "_bias");
      unit.projections.emplace_back(role, Projection(weight, bias ? *bias : at::Tensor(), plain));
    };
    if (description.kind == UnitKind::layer) {
      for (const char* role : {"qkv", "o", "gate_up", "down"}) {
        if (const auto* weight = unit.weights.find(role)) project(role, *weight);
      }
      const auto ofExperts = [&](const char* role) {
        std::vector<Projection> projections;
        for (const auto& weight : unit.weights[role].chunk(config.moe->numExperts)) {
          projections.emplace_back(weight, at::Tensor(), plain);
        }
        return projections;
      };
      if (!description.experts.empty()) {
        unit.gateUps = ofExperts("expert_gate_up");
        unit.downs = ofExperts("expert_down");
      }
    } else if (description.kind == UnitKind::head) {
      const auto* own = unit.weights.find("head");
      project("head", own ? *own : units_.front().weights["embed"]);
    }
  }
}

void ServedWeights::begin() {
  for (auto& unit : units_) unit.missing = unit.parameters;
}

void ServedWeights::put(size_t parameter, const at::Tensor& values) {
  parameters_[parameter].second.copy_(values);
  auto& unit = units_[unitOf_[parameter]];
  if (--unit.missing == 0 && &unit != &units_.back()) unit.pack();
}

void ServedWeights::finish() { units_.back().pack(); }

void ServedWeights::Unit::pack() {
  const at::NoGradGuard noGrad;
  for (auto& [role, projection] : projections) projection.pack();
  for (auto* experts : {&gateUps, &downs}) {
    for (auto& projection : *experts) projection.pack();
  }
}

at::Tensor ServedWeights::Unit::product(const std::string& role, const at::Tensor& x) const {
  return std::ranges::find(projections, role, &std::pair<std::string, Projection>::first)->second(x);
}

at::Tensor ServedWeights::Unit::runExperts(const at::Tensor& rows, const at::Tensor& counts) const {
  std::vector<at::Tensor> outputs;
  forEachExpert(counts, [&](int64_t expert, int64_t begin, int64_t count) {
    outputs.push_back(downs[expert](gated(gateUps[expert](rows.narrow(0, begin, count)))));
  });
  return at::cat(outputs);
}

at::Tensor ServedWeights::embed(const at::Tensor& tokens) const {
  return embedTokens(units_.front().weights["embed"], tokens);
}

at::Tensor ServedWeights::layer(
    int64_t index,
    const at::Tensor& hidden,
    const Rotary& rotary,
    const Attention& attention,
    std::vector<at::Tensor>& routes) const {
  const auto& unit = units_[index + 1];
  const Product product = [&](const char* role, const at::Tensor& x) { return unit.product(role, x); };
  const auto [residual, x] = attentionForward(config_, unit.weights, product, hidden, rotary, attention);
  if (!config_.isMixture(index)) return residual + product("down", gated(product("gate_up", x)));
  const auto probabilities = routerProbabilities(x, unit.weights["router"]);
  routes.push_back(likeliestExperts(*config_.moe, probabilities));
  const Experts experts = [&](const at::Tensor& rows, const at::Tensor& counts) {
    return unit.runExperts(rows, counts);
  };
  return residual + mixExperts(*config_.moe, x, probabilities, routes.back(), experts);
}

at::Tensor ServedWeights::logits(const at::Tensor& hidden) const {
  const auto& unit = units_.back();
  const auto x = rmsNorm(hidden, unit.weights["norm"], config_.rmsNormEps);
  return unit.product("head", x).to(at::kFloat).cpu().contiguous();
}

}  // namespace molt

#include "core/served.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace molt {

namespace {

const ParameterDescription* find(const UnitDescription& unit, const std::string& role) {
  const auto found = std::ranges::find(unit.parameters, role, &ParameterDescription::role);
  return found == unit.parameters.end() ? nullptr : &*found;
}

}  // namespace

ServedWeights::ServedWeights(
    const DecoderConfig& config, const std::vector<UnitDescription>& units, at::ScalarType dtype, bool plain)
    : config_(config), dtype_(dtype), plain_(plain) {
  Places places;
  for (const auto& unit : units) {
    UnitWeights norms;
    for (const auto& parameter : unit.parameters) {
      if (parameter.shape.size() > 1 || !parameter.role.ends_with("norm")) continue;
      const auto values = at::empty(parameter.shape, at::kFloat);
      norms.set(parameter.role, values);
      places[parameter.name] = values;
    }
    if (unit.kind == UnitKind::embedding) {
      const auto& parameter = *find(unit, "embed");
      embed_ = places[parameter.name] = at::empty(parameter.shape, dtype_);
    } else if (unit.kind == UnitKind::layer) {
      layers_.push_back(
          {norms, fuse(unit, {"q", "k", "v"}, places), fuse(unit, {"o"}, places), fuse(unit, {"gate", "up"}, places),
           fuse(unit, {"down"}, places)});
    } else {
      const auto* parameter = find(unit, "head");
      norm_ = norms["norm"];
      const auto weight = parameter ? places[parameter->name] = at::empty(parameter->shape, dtype_) : embed_;
      head_ = Projection(weight, at::Tensor(), plain_);
    }
  }
  for (const auto& unit : units) {
    for (const auto& parameter : unit.parameters) {
      const auto found = places.find(parameter.name);
      TORCH_CHECK(found != places.end(), "a role '", parameter.role, "' is not served");
      parameters_.emplace_back(parameter.name, found->second);
    }
  }
}

// One matrix of all `roles`, row after row, and one bias where any of them has one.
Projection ServedWeights::fuse(
    const UnitDescription& unit, const std::vector<std::string>& roles, Places& places) const {
  int64_t rows = 0;
  bool biased = false;
  for (const auto& role : roles) {
    const auto* parameter = find(unit, role);
    TORCH_CHECK(parameter, "the unit has no parameter of role '", role, "'");
    rows += parameter->shape[0];
    biased = biased || find(unit, role + "_bias");
  }
  const auto weight = at::empty({rows, find(unit, roles[0])->shape[1]}, dtype_);
  const auto bias = biased ? at::zeros({rows}, dtype_) : at::Tensor();
  int64_t begin = 0;
  for (const auto& role : roles) {
    const auto* parameter = find(unit, role);
    places[parameter->name] = weight.narrow(0, begin, parameter->shape[0]);
    if (const auto* own = find(unit, role + "_bias")) {
      places[own->name] = bias.narrow(0, begin, parameter->shape[0]);
    }
    begin += parameter->shape[0];
  }
  return Projection(weight, bias, plain_);
}

void ServedWeights::pack() {
  for (auto& layer : layers_) {
    for (auto* projection : {&layer.qkv, &layer.o, &layer.gateUp, &layer.down}) projection->pack();
  }
  head_.pack();
}

at::Tensor ServedWeights::embed(const at::Tensor& tokens) const {
  return embedTokens(embed_, tokens).to(at::kFloat);
}

Qkv ServedWeights::project(const Layer& layer, const at::Tensor& hidden, const Rotary& rotary) const {
  const int64_t heads = config_.numHeads, kvHeads = config_.numKvHeads;
  const auto x = rmsNorm(hidden, layer.norms["input_norm"], config_.rmsNormEps).to(dtype_);
  const auto all = layer.qkv(x).view({-1, heads + 2 * kvHeads, config_.headDim});
  auto q = all.narrow(1, 0, heads).to(at::kFloat);
  auto k = all.narrow(1, heads, kvHeads).to(at::kFloat);
  if (config_.qkNorm) {
    q = rmsNorm(q, layer.norms["q_norm"], config_.rmsNormEps);
    k = rmsNorm(k, layer.norms["k_norm"], config_.rmsNormEps);
  }
  return {applyRotary(q, rotary), applyRotary(k, rotary), all.narrow(1, heads + kvHeads, kvHeads)};
}

at::Tensor ServedWeights::layer(
    int64_t index, const at::Tensor& hidden, const Rotary& rotary, const Attention& attention) const {
  const auto& layer = layers_[index];
  const auto attended = attention(project(layer, hidden, rotary)).flatten(1).to(dtype_);
  const auto residual = hidden + layer.o(attended);
  const auto x = rmsNorm(residual, layer.norms["post_norm"], config_.rmsNormEps).to(dtype_);
  const auto halves = layer.gateUp(x).chunk(2, 1);
  return residual + layer.down(at::silu(halves[0]).mul_(halves[1]));
}

at::Tensor ServedWeights::logits(const at::Tensor& hidden) const {
  const auto x = rmsNorm(hidden, norm_, config_.rmsNormEps).to(dtype_);
  return head_(x).to(at::kFloat).contiguous();
}

}  // namespace molt

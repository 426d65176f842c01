#include "core/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>

#include <functional>
#include <numeric>

#include "core/kernels.h"

namespace molt {

int64_t MoeConfig::mixtures() const {
  return std::accumulate(layers.begin(), layers.end(), int64_t{0});
}

int64_t ParameterDescription::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<ParameterDescription> UnitDescription::allParameters() const {
  auto all = parameters;
  all.insert(all.end(), experts.begin(), experts.end());
  return all;
}

std::string fusedRole(const std::string& role) {
  const auto base = role.substr(0, role.find("_bias"));
  const bool attends = base == "q" || base == "k" || base == "v";
  const bool gates = base == "gate" || base == "up";
  const bool expertGates = base == "expert_gate" || base == "expert_up";
  return (attends ? "qkv" : gates ? "gate_up" : expertGates ? "expert_gate_up" : base) + role.substr(base.size());
}

void UnitWeights::set(std::string role, at::Tensor tensor) {
  tensors_.emplace_back(std::move(role), std::move(tensor));
}

const at::Tensor* UnitWeights::find(const std::string& role) const {
  for (const auto& [name, tensor] : tensors_) {
    if (name == role) return &tensor;
  }
  return nullptr;
}

const at::Tensor& UnitWeights::operator[](const char* role) const {
  const at::Tensor* tensor = find(role);
  TORCH_CHECK(tensor, "the unit has no parameter of role '", role, "'");
  return *tensor;
}

Rotary rotaryTables(const DecoderConfig& config, const at::Tensor& positions) {
  const auto frequencies = at::tensor(config.inverseFrequencies, at::kFloat).to(positions.device());
  const auto angles = positions.to(at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  const auto whole = at::cat({angles, angles}, 1).unsqueeze(1);
  return {whole.cos().mul_(config.ropeScale), whole.sin().mul_(config.ropeScale)};
}

at::Tensor applyRotary(const at::Tensor& x, const Rotary& rotary) {
  if (x.is_cpu()) return fusedRotary(x, rotary.cos, rotary.sin);
  const auto exact = x.to(at::kFloat);
  const auto halves = exact.chunk(2, -1);
  return (exact * rotary.cos + at::cat({-halves[1], halves[0]}, -1) * rotary.sin).to(x.scalar_type());
}

at::Tensor rmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto exact = x.to(at::kFloat);
  if (x.is_cpu()) return fusedRmsNorm(exact, weight, eps);
  return at::rms_norm(exact, {x.size(-1)}, weight.to(at::kFloat), eps).to(weight.scalar_type());
}

Attended attentionForward(
    const DecoderConfig& config,
    const UnitWeights& norms,
    const Product& product,
    const at::Tensor& hidden,
    const Rotary& rotary,
    const Attention& attention) {
  const int64_t heads = config.numHeads, kvHeads = config.numKvHeads;
  const auto input = rmsNorm(hidden, norms["input_norm"], config.rmsNormEps);
  const auto qkv = product("qkv", input).view({-1, heads + 2 * kvHeads, config.headDim});
  auto parts = qkv.split_with_sizes({heads, kvHeads, kvHeads}, 1);
  if (config.qkNorm) {
    parts[0] = rmsNorm(parts[0], norms["q_norm"], config.rmsNormEps);
    parts[1] = rmsNorm(parts[1], norms["k_norm"], config.rmsNormEps);
  }
  const auto attended = attention({applyRotary(parts[0], rotary), applyRotary(parts[1], rotary), parts[2]});
  const auto residual = hidden + product("o", attended.flatten(1));
  return {residual, rmsNorm(residual, norms["post_norm"], config.rmsNormEps)};
}

at::Tensor gated(const at::Tensor& gateUp) {
  const auto halves = gateUp.chunk(2, 1);
  return at::silu(halves[0]) * halves[1];
}

at::Tensor embedTokens(const at::Tensor& embed, const at::Tensor& tokens) {
  return at::embedding(embed, tokens).to(at::kFloat);
}

}  // namespace molt

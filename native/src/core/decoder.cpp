#include "core/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>

#include <functional>
#include <numeric>

#include "core/kernels.h"

namespace molt {

int64_t ParameterDescription::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

void UnitWeights::set(std::string role, at::Tensor tensor) {
  tensors_.emplace_back(std::move(role), std::move(tensor));
}

const at::Tensor* UnitWeights::find(const char* role) const {
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
  const auto frequencies = at::tensor(config.inverseFrequencies, at::kFloat);
  const auto angles = positions.to(at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  const auto whole = at::cat({angles, angles}, 1).unsqueeze(1);
  return {whole.cos().mul_(config.ropeScale), whole.sin().mul_(config.ropeScale)};
}

at::Tensor applyRotary(const at::Tensor& x, const Rotary& rotary) {
  const auto exact = x.to(at::kFloat);
  if (x.is_cpu()) return fusedRotary(exact, rotary.cos, rotary.sin).to(x.scalar_type());
  const auto halves = exact.chunk(2, -1);
  return (exact * rotary.cos + at::cat({-halves[1], halves[0]}, -1) * rotary.sin).to(x.scalar_type());
}

at::Tensor rmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto exact = x.to(at::kFloat);
  const auto scale = weight.to(at::kFloat);
  const auto normed = x.is_cpu() ? fusedRmsNorm(exact, scale, eps) : at::rms_norm(exact, {x.size(-1)}, scale, eps);
  return normed.to(weight.scalar_type());
}

at::Tensor project(const UnitWeights& weights, const char* role, const at::Tensor& x) {
  const at::Tensor* bias = weights.find((std::string(role) + "_bias").c_str());
  return at::linear(x, weights[role], bias ? *bias : at::Tensor());
}

Qkv layerQkv(const UnitWeights& weights, const DecoderConfig& config, const at::Tensor& hidden, const Rotary& rotary) {
  const auto x = rmsNorm(hidden, weights["input_norm"], config.rmsNormEps);
  auto q = project(weights, "q", x).view({-1, config.numHeads, config.headDim});
  auto k = project(weights, "k", x).view({-1, config.numKvHeads, config.headDim});
  const auto v = project(weights, "v", x).view({-1, config.numKvHeads, config.headDim});
  if (config.qkNorm) {
    q = rmsNorm(q, weights["q_norm"], config.rmsNormEps);
    k = rmsNorm(k, weights["k_norm"], config.rmsNormEps);
  }
  return {applyRotary(q, rotary), applyRotary(k, rotary), v};
}

at::Tensor layerOutput(
    const UnitWeights& weights, const DecoderConfig& config, const at::Tensor& hidden, const at::Tensor& attended) {
  const auto flat = attended.reshape({hidden.size(0), config.numHeads * config.headDim});
  const auto residual = hidden + project(weights, "o", flat);
  const auto x = rmsNorm(residual, weights["post_norm"], config.rmsNormEps);
  const auto gated = at::silu(project(weights, "gate", x)) * project(weights, "up", x);
  return residual + project(weights, "down", gated);
}

at::Tensor layerForward(
    const UnitWeights& weights,
    const DecoderConfig& config,
    const at::Tensor& hidden,
    const Rotary& rotary,
    const Attention& attention) {
  return layerOutput(weights, config, hidden, attention(layerQkv(weights, config, hidden, rotary)));
}

at::Tensor embedTokens(const at::Tensor& embed, const at::Tensor& tokens) {
  return at::embedding(embed, tokens);
}

at::Tensor headLogits(
    const DecoderConfig& config, const at::Tensor& hidden, const at::Tensor& norm, const at::Tensor& head) {
  return at::linear(rmsNorm(hidden, norm, config.rmsNormEps), head);
}

}  // namespace molt

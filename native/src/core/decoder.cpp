#include "core/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

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

bool UnitWeights::has(const char* role) const {
  return find(role) != nullptr;
}

/// What the hand-written loops take; ATen does the rest.
static bool isPlain(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat;
}

Rotary rotaryTables(const DecoderConfig& config, const at::Tensor& positions) {
  const auto exponents = at::arange(0, config.headDim, 2, at::kFloat).div_(static_cast<double>(config.headDim));
  const auto frequencies = at::pow(config.ropeTheta, exponents).reciprocal_();
  const auto angles = positions.to(at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  const auto whole = at::cat({angles, angles}, 1).unsqueeze(1);
  return {whole.cos(), whole.sin()};
}

at::Tensor applyRotary(const at::Tensor& x, const Rotary& rotary) {
  if (isPlain(x)) return fusedRotary(x, rotary.cos, rotary.sin);
  const auto halves = x.chunk(2, -1);
  return x * rotary.cos + at::cat({-halves[1], halves[0]}, -1) * rotary.sin;
}

at::Tensor rmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (isPlain(x)) return fusedRmsNorm(x, weight, eps);
  return at::rms_norm(x, {x.size(-1)}, weight, eps);
}

Qkv layerQkv(const UnitWeights& weights, const DecoderConfig& config, const at::Tensor& hidden, const Rotary& rotary) {
  const auto x = rmsNorm(hidden, weights["input_norm"], config.rmsNormEps);
  auto q = at::linear(x, weights["q"]).view({-1, config.numHeads, config.headDim});
  auto k = at::linear(x, weights["k"]).view({-1, config.numKvHeads, config.headDim});
  const auto v = at::linear(x, weights["v"]).view({-1, config.numKvHeads, config.headDim});
  if (config.qkNorm) {
    q = rmsNorm(q, weights["q_norm"], config.rmsNormEps);
    k = rmsNorm(k, weights["k_norm"], config.rmsNormEps);
  }
  return {applyRotary(q, rotary), applyRotary(k, rotary), v};
}

at::Tensor layerOutput(
    const UnitWeights& weights, const DecoderConfig& config, const at::Tensor& hidden, const at::Tensor& attended) {
  const auto residual =
      hidden + at::linear(attended.reshape({hidden.size(0), config.numHeads * config.headDim}), weights["o"]);
  const auto x = rmsNorm(residual, weights["post_norm"], config.rmsNormEps);
  const auto gated = at::silu(at::linear(x, weights["gate"])) * at::linear(x, weights["up"]);
  return residual + at::linear(gated, weights["down"]);
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

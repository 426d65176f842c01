#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// The decoder's maths, shared by the trainer and the sampler. Everything is a pure function of weights and inputs, so
// that what is sampled and what is trained differ in nothing but how attention finds its keys.
// Shapes: T positions of all rows end to end, H hidden, D head dimension, V vocabulary.
// The residual stream and sums are float32; weights, what is multiplied and attention are of one compute dtype.
namespace molt {

struct MoeConfig {
  int64_t numExperts = 0;
  int64_t expertsPerToken = 0;
  int64_t expertIntermediateSize = 0;
  bool normTopkProb = false;     // the chosen experts' weights sum to 1
  std::vector<int64_t> layers;   // [numLayers], 1: a mixture

  int64_t mixtures() const;
};

struct DecoderConfig {
  int64_t vocabSize = 0;
  int64_t hiddenSize = 0;
  int64_t intermediateSize = 0;
  int64_t numLayers = 0;
  int64_t numHeads = 0;
  int64_t numKvHeads = 0;
  int64_t headDim = 0;
  std::vector<double> inverseFrequencies;  // [headDim / 2]
  double ropeScale = 1;                    // of cosines and sines
  std::vector<int64_t> windows;            // [numLayers], keys a query sees, its own included; 0: all
  double rmsNormEps = 1e-6;
  bool tieWordEmbeddings = false;
  bool qkNorm = false;
  std::optional<MoeConfig> moe;

  bool isMixture(int64_t layer) const { return moe && moe->layers[layer] != 0; }
};

struct ParameterDescription {
  std::string role;  // what the maths asks for: `q`, `input_norm`
  std::string name;  // the checkpoint's tensor
  std::vector<int64_t> shape;
  bool initOnes = false;  // else normal with initStd, or uniform up to initBound where there is one
  double initStd = 0;
  double initBound = 0;
  bool decay = false;
  int64_t expert = -1;  // whose it is

  int64_t numel() const;
};

enum class UnitKind { embedding, layer, head };

// Low-rank adapters of a unit (arXiv 2106.09685): `q_lora_A` [r, in] and `q_lora_B` [out, r] among them make the weight
// of role `q` into W + scale · B · A. Of a unit that has this, they alone are trained.
struct Adapters {
  double scale = 1;
  std::vector<ParameterDescription> parameters;
};

struct UnitDescription {
  UnitKind kind = UnitKind::layer;
  std::vector<ParameterDescription> parameters;
  std::vector<ParameterDescription> experts;  // of a mixture: gate and up of each, then down of each
  std::optional<Adapters> adapters;

  // As checkpoints have them.
  std::vector<ParameterDescription> allParameters() const;
};

// The role under which a parameter is multiplied: the projections of one input are one matrix, row after row, and so
// are their biases: `qkv` (of `q`, `k`, `v`), `gate_up`, `expert_gate_up`; the others keep theirs.
std::string fusedRole(const std::string& role);

// The weights of one unit by fused role. A unit has a dozen at most, so a list is the fastest map.
class UnitWeights {
 public:
  void set(std::string role, at::Tensor tensor);
  // Throws where the unit has no such role.
  const at::Tensor& operator[](const char* role) const;
  // Null where the unit has no such role.
  const at::Tensor* find(const std::string& role) const;

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

// x · weightᵀ of a fused role, plus its bias where the unit has one (`qkv_bias`).
using Product = std::function<at::Tensor(const char* role, const at::Tensor& x)>;

// Cosines and sines of each position, [T, 1, D] (the middle dimension broadcasts over heads), as transformers has them:
// frequencies of the first half repeated in the second, angles in float32.
struct Rotary {
  at::Tensor cos;
  at::Tensor sin;
};

// positions: int64 [T].
Rotary rotaryTables(const DecoderConfig& config, const at::Tensor& positions);

// x [T, heads, D] turned by its positions (rotate_half).
at::Tensor applyRotary(const at::Tensor& x, const Rotary& rotary);

// Over the last dimension, in float32; the result is of the weight's dtype.
at::Tensor rmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

struct Qkv {
  at::Tensor q;  // [T, numHeads, D], normed and turned
  at::Tensor k;  // [T, numKvHeads, D], normed and turned
  at::Tensor v;  // [T, numKvHeads, D]
};

// Causal attention within the layer's window, scaled by 1 / sqrt(D), [T, numHeads, D].
using Attention = std::function<at::Tensor(const Qkv&)>;

// One layer up to what its MLP or mixture takes, whose result is added to `residual`.
struct Attended {
  at::Tensor residual;  // float32 [T, H]
  at::Tensor normed;    // [T, H]
};

// norms: those of the unit. hidden: [T, H].
Attended attentionForward(
    const DecoderConfig& config,
    const UnitWeights& norms,
    const Product& product,
    const at::Tensor& hidden,
    const Rotary& rotary,
    const Attention& attention);

// gateUp: [T, 2 * I]. Gives [T, I], to be multiplied by `down`.
at::Tensor gated(const at::Tensor& gateUp);

// tokens: int64 [T]; embed: [V, H]. Gives float32 [T, H].
at::Tensor embedTokens(const at::Tensor& embed, const at::Tensor& tokens);

}  // namespace molt

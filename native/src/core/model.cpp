#include "core/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/device.h"
#include "core/kernels.h"
#include "core/transfer.h"
#include "core/unit.h"

namespace molt {
namespace {

/// splitmix64: neighbouring seeds and indices give unrelated generators.
uint64_t mix(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

at::Tensor initialValue(const ParameterDescription& parameter, uint64_t seed) {
  if (parameter.initOnes) return at::ones(parameter.shape, at::kFloat);
  const auto value = at::empty(parameter.shape, at::kFloat);
  const auto generator = at::detail::createCPUGenerator(seed);
  const double bound = parameter.initBound;
  return bound > 0 ? value.uniform_(-bound, bound, generator) : value.normal_(0, parameter.initStd, generator);
}

bool hasRole(const UnitDescription& unit, const std::string& role) {
  return std::any_of(unit.parameters.begin(), unit.parameters.end(), [&](const auto& it) { return it.role == role; });
}

void checkUnits(const DecoderConfig& config, const std::vector<UnitDescription>& units) {
  const auto layers = static_cast<size_t>(config.numLayers);
  bool fits = units.size() == layers + 2;
  for (size_t i = 0; fits && i < units.size(); ++i) {
    const auto expected = i == 0 ? UnitKind::embedding : i <= layers ? UnitKind::layer : UnitKind::head;
    fits = units[i].kind == expected;
  }
  TORCH_CHECK(
      fits, "a model of ", layers, " layers has as units one embedding, the layers and one head; ", units.size(),
      " units were described");
  const auto pairs = config.headDim / 2;
  TORCH_CHECK(
      config.inverseFrequencies.size() == static_cast<size_t>(pairs) && config.windows.size() == layers,
      "a model of ", layers, " layers and ", pairs, " pairs of dimensions a head needs as many windows and inverse "
      "frequencies, not ", config.windows.size(), " and ", config.inverseFrequencies.size());
  for (size_t i = 0; i < layers; ++i) {
    const bool isMixture = config.isMixture(static_cast<int64_t>(i));
    const size_t experts = isMixture ? 3 * static_cast<size_t>(config.moe->numExperts) : 0;
    TORCH_CHECK(
        units[i + 1].experts.size() == experts && hasRole(units[i + 1], "router") == isMixture, "layer ", i, " has ",
        experts, " parameters of experts by the config, but ", units[i + 1].experts.size(), " were described");
  }
}

/// Log-probability of each row's target and entropy of its distribution, float32 [N, 2], differentiable in `logits`.
/// logits: [N, V], before temperature; temperatures: float32 [N, 1]; targets: int64 [N].
at::Tensor scoreTargets(const at::Tensor& logits, const at::Tensor& temperatures, const at::Tensor& targets) {
  if (logits.is_cpu()) return fusedScores(logits, temperatures, targets);
  const auto all = at::log_softmax(logits / temperatures, -1);
  return at::stack({all.gather(1, targets.unsqueeze(1)).squeeze(1), -(all.exp() * all).sum(-1)}, 1);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// residual + x · weightᵀ. Its gradients need no value of its own, so a recomputation leaves the product out.
class AddProduct : public torch::autograd::Function<AddProduct> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& residual,
      const at::Tensor& x,
      const at::Tensor& weight,
      bool gradientsOnly) {
    context->save_for_backward({x, weight});
    return gradientsOnly ? residual.detach() : residual + at::linear(x, weight);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto d = gradients[0].to(saved[0].scalar_type());
    const auto weightGradient = context->needs_input_grad(2) ? d.t().mm(saved[0]) : at::Tensor();
    return {gradients[0], d.mm(saved[1]), weightGradient, at::Tensor()};
  }
};

}  // namespace

Model::Model(
    DecoderConfig config,
    std::vector<UnitDescription> units,
    std::shared_ptr<ProcessGroup> group,
    bool trainable,
    at::ScalarType dtype,
    int64_t headChunk,
    bool keepGraphs,
    bool freezeRouter)
    : config_(config),
      units_(std::move(units)),
      group_(std::move(group)),
      trainable_(trainable),
      hasValues_(hasRole(units_.back(), "value")),
      headChunk_(headChunk),
      keepGraphs_(keepGraphs) {
  checkUnits(config_, units_);
  TORCH_CHECK(headChunk_ > 0, "headChunk must be positive, not ", headChunk_);
  for (const auto& unit : units_) {
    // In bfloat16 a value would have three digits.
    const auto own = hasRole(unit, "value") ? at::kFloat : dtype;
    auto& shards = unitShards_.emplace_back();
    const auto add = [&](const std::vector<ParameterDescription>& parameters, bool trained) {
      shards.push_back(std::make_shared<FlatShard>(parameters, group_, trained, own));
      if (trained) trained_.push_back(shards.back());
    };
    const bool whole = trainable_ && !unit.adapters;
    if (freezeRouter && hasRole(unit, "router")) {
      const auto router = unit.parameters.end() - 1;
      add({unit.parameters.begin(), router}, whole);
      add({*router}, false);
    } else {
      add(unit.parameters, whole);
    }
    if (!unit.experts.empty()) add(unit.experts, whole);
    shards_.insert(shards_.end(), shards.begin(), shards.end());
    if (!unit.adapters) continue;
    trained_.push_back(std::make_shared<FlatShard>(unit.adapters->parameters, group_, trainable_, at::kFloat));
    shards.front()->adapt(trained_.back(), unit.adapters->scale);
  }
}

void Model::initialize(uint64_t seed, bool adaptersOnly) {
  const at::AutoGradMode noGraph(false);
  uint64_t index = 0;
  for (const auto& shard : adaptersOnly ? trained_ : shards_) {
    for (const auto& slot : shard->slots()) {
      shard->scatter(shard->data(), slot, initialValue(slot.parameter, mix(adaptersOnly ? ~seed : seed, index++)));
    }
  }
}

void Model::load(const std::vector<TensorLocation>& tensors) {
  const at::AutoGradMode noGraph(false);
  const auto located = locateParameters(units_, tensors);
  size_t index = 0;
  for (const auto& shard : shards_) {
    for (const auto& slot : shard->slots()) {
      if (slot.parameter.role != "value") shard->scatter(shard->data(), slot, mapTensor(located[index++]));
    }
  }
}

std::shared_ptr<Model> Model::base() const {
  auto model = std::make_shared<Model>(*this);
  model->trainable_ = false;
  model->trained_.clear();
  model->shards_.clear();
  for (auto& shards : model->unitShards_) {
    for (auto& shard : shards) model->shards_.push_back(shard = shard->base());
  }
  return model;
}

Model::Scores Model::forward(const PackedRows& packed, bool grad) {
  TORCH_CHECK(!hasValues_, "a model with a value head has no log-probabilities");
  RouteTotals routes;
  const auto scores = run(packed, grad, routes);
  return {scores.select(1, 0), scores.select(1, 1), routes};
}

at::Tensor Model::values(const PackedRows& packed, bool grad) {
  TORCH_CHECK(hasValues_, "the model has no value head");
  RouteTotals routes;
  return run(packed, grad, routes).select(1, 0);
}

at::Tensor Model::run(const PackedRows& packed, bool grad, RouteTotals& routes) const {
  TORCH_CHECK(!grad || trainable_, "a model that is not trainable has no gradients");
  const at::AutoGradMode mode(grad);
  const auto rows = sortRows(packed, config_);
  const auto scores = runHead(rows, runLayers(rows, grad, routes));
  const auto length = static_cast<int64_t>(packed.tokens.size());
  return at::zeros({length, scores.size(1)}, scores.options()).index_copy(0, rows.origins, scores);
}

at::Tensor Model::runLayers(const SortedRows& rows, bool grad, RouteTotals& routes) const {
  // Token ids have no gradient; this stands for one, so that backward reaches the embedding.
  const auto anchor = at::zeros({1}, onDevice(at::kFloat)).set_requires_grad(grad);
  auto hidden = runEmbedding(shards_.front(), rows.tokens, anchor);
  const auto rotary = rotaryTables(config_, rows.positions);
  int64_t mixtures = 0;
  for (int64_t i = 0; i < config_.numLayers; ++i) {
    const auto mixture =
        config_.isMixture(i) ? std::make_shared<MixturePass>(*config_.moe, rows, mixtures++) : nullptr;
    const auto layer = [config = config_, rotary, groups = rows.groups, window = config_.windows[i], mixture](
                           const UnitWeights& weights, const at::Tensor& input, int64_t, bool gradientsOnly) {
      const Product product = [&](const char* role, const at::Tensor& x) {
        const auto* bias = weights.find(std::string(role) + "_bias");
        return at::linear(x, weights[role], bias ? *bias : at::Tensor());
      };
      const auto attention = [&](const Qkv& qkv) { return attendRows(qkv, groups, window); };
      const auto [residual, x] = attentionForward(config, weights, product, input, rotary, attention);
      if (mixture) return residual + mixture->run(weights, x);
      const auto inner = gated(product("gate_up", x));
      if (weights.find("down_bias")) return residual + product("down", inner);
      return AddProduct::apply(residual, inner, weights["down"], gradientsOnly);
    };
    hidden = runUnit(unitShards_[i + 1], layer, hidden, {.keep = grad && keepGraphs_});
    if (mixture) routes.add(mixture->totals());
  }
  return hidden;
}

at::Tensor Model::runHead(const SortedRows& rows, const at::Tensor& hidden) const {
  std::vector<std::shared_ptr<FlatShard>> shards{shards_.back()};
  if (config_.tieWordEmbeddings) shards.push_back(shards_.front());
  const auto body = [config = config_, targets = rows.targets, temperatures = rows.temperatures](
                        const UnitWeights& weights, const at::Tensor& input, int64_t begin, bool) {
    const auto x = rmsNorm(input, weights["norm"], config.rmsNormEps);
    if (const auto* value = weights.find("value")) return at::linear(x, *value);
    const auto logits = at::linear(x, weights[config.tieWordEmbeddings ? "embed" : "head"]);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, input.size(0)); };
    return scoreTargets(logits, part(temperatures), part(targets));
  };
  return runUnit(std::move(shards), body, hidden.index_select(0, rows.selected), {.chunk = headChunk_});
}

void Model::backward(const at::Tensor& loss) {
  TORCH_CHECK(loss.numel() == 1, "backward takes one number, not a tensor of shape ", loss.sizes());
  TORCH_CHECK(loss.requires_grad(), "the loss has no graph: nothing in it came from forward(rows, true)");
  const at::AutoGradMode graph(true);
  loss.backward();
}

void Model::zeroGradients() {
  for (const auto& shard : trained_) shard->gradient().zero_();
}

double Model::gradientNorm() const {
  TORCH_CHECK(trainable_, "a model that is not trainable has no gradients");
  const at::AutoGradMode noGraph(false);
  double squares = 0;
  for (const auto& shard : trained_) {
    const auto norm = at::linalg_vector_norm(shard->gradient(), 2, std::nullopt, false, at::kDouble);
    squares += std::pow(norm.item<double>(), 2);
  }
  auto total = at::scalar_tensor(squares, at::kDouble).reshape({1});
  if (group_) group_->allReduce(total);
  return std::sqrt(total.item<double>());
}

std::vector<std::string> Model::nonFiniteGradients() const {
  TORCH_CHECK(trainable_, "a model that is not trainable has no gradients");
  const at::AutoGradMode noGraph(false);
  std::vector<const std::string*> names;
  std::vector<float> broken;
  for (const auto& shard : trained_) {
    for (const auto& slot : shard->slots()) {
      names.push_back(&slot.parameter.name);
      broken.push_back(at::isfinite(shard->local(shard->gradient(), slot)).all().item<bool>() ? 0 : 1);
    }
  }
  auto flags = at::tensor(broken);
  if (group_) group_->allReduce(flags, Reduce::kMax);
  std::vector<std::string> result;
  for (size_t i = 0; i < names.size(); ++i) {
    if (flags.const_data_ptr<float>()[i] > 0) result.push_back(*names[i]);
  }
  return result;
}

Model::Place Model::find(const std::string& name, bool trained) const {
  for (const auto& shards : {trained_, trained ? Shards() : shards_}) {
    for (const auto& shard : shards) {
      for (const auto& slot : shard->slots()) {
        if (slot.parameter.name == name) return {shard.get(), &slot};
      }
    }
  }
  TORCH_CHECK(false, "the model ", trained ? "trains" : "has", " no parameter '", name, "'");
}

at::Tensor Model::read(const std::string& name) const {
  const auto [shard, slot] = find(name, false);
  return slot->in(shard->gatherWeights(at::kFloat)).clone();
}

at::Tensor Model::readGradient(const std::string& name) const {
  TORCH_CHECK(trainable_, "a model that is not trainable has no gradients");
  const auto [shard, slot] = find(name, true);
  return slot->in(shard->gather(shard->gradient())).clone();
}

void Model::writeGradient(const std::string& name, const at::Tensor& value) {
  TORCH_CHECK(trainable_, "a model that is not trainable has no gradients");
  const auto [shard, slot] = find(name, true);
  TORCH_CHECK(
      value.numel() == slot->parameter.numel(), "parameter '", name, "' has ", slot->parameter.numel(), " values, not ",
      value.numel());
  shard->scatter(shard->gradient(), *slot, value);
}

template <typename Visit>
void Model::forEachParameter(const Shards& shards, Visit visit) const {
  const at::AutoGradMode noGraph(false);
  for (const auto& shard : shards) {
    const auto flat = shard->gatherWeights(at::kFloat);
    for (const auto& slot : shard->slots()) visit(slot.in(flat));
  }
}

void Model::save(const std::string& path, const std::vector<uint8_t>& header, bool adaptersOnly) const {
  std::optional<FileWriter> file;
  if (rank() == 0) {
    file.emplace(path);
    file->write(header.data(), header.size());
  }
  forEachParameter(adaptersOnly ? trained_ : shards_, [&](const at::Tensor& value) {
    if (file) file->write(value);
  });
  if (file) file->close();
}

std::string Model::broadcast(
    const std::shared_ptr<ProcessGroup>& transfer, at::ScalarType dtype, int64_t bucketBytes) const {
  TORCH_CHECK(rank() != 0 || transfer, "rank 0 of the model broadcasts its weights and needs the transfer's group");
  std::optional<WeightSender> sender;
  if (rank() == 0) sender.emplace(*transfer, dtype, bucketBytes);
  forEachParameter(shards_, [&](const at::Tensor& value) {
    if (sender) sender->add(value);
  });
  return sender ? sender->finish() : "";
}

std::string Model::checksum() const {
  Checksum checksum;
  forEachParameter(shards_, [&](const at::Tensor& value) { checksum.update(value); });
  return checksum.hexadecimal();
}

int64_t Model::shardSize() const {
  int64_t size = 0;
  for (const auto& shard : trained_) size += shard->data().numel();
  return size;
}

}  // namespace molt

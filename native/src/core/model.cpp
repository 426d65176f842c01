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
#include <exception>
#include <iterator>
#include <optional>

#include "core/context.h"
#include "core/device.h"
#include "core/kernels.h"
#include "core/selective.h"
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

Model::Model(DecoderConfig config, std::vector<UnitDescription> units, ModelOptions options)
    : config_(std::move(config)),
      units_(std::move(units)),
      options_(std::move(options)),
      hasValues_(hasRole(units_.back(), "value")) {
  checkUnits(config_, units_);
  TORCH_CHECK(options_.headChunk > 0, "headChunk must be positive, not ", options_.headChunk);
  const int64_t parts = options_.expertGroup ? options_.expertGroup->worldSize() : 1;
  TORCH_CHECK(
      parts == 1 || (config_.moe && config_.moe->numExperts % parts == 0), config_.moe ? config_.moe->numExperts : 0,
      " experts cannot be shared out evenly to ", parts, " ranks");
  for (const auto& unit : units_) {
    // In bfloat16 a value would have three digits.
    const auto own = hasRole(unit, "value") ? at::kFloat : options_.dtype;
    auto& shards = unitShards_.emplace_back();
    const auto add = [&](const std::vector<ParameterDescription>& parameters, const auto& group, bool trained) {
      shards.push_back(std::make_shared<FlatShard>(parameters, group, trained, own, options_.deferReduce));
      if (trained) trained_.push_back(shards.back());
    };
    const auto& group = options_.group;
    const bool whole = options_.trainable && !unit.adapters;
    if (options_.freezeRouter && hasRole(unit, "router")) {
      const auto router = unit.parameters.end() - 1;
      add({unit.parameters.begin(), router}, group, whole);
      add({*router}, group, false);
    } else {
      add(unit.parameters, group, whole);
    }
    if (!unit.experts.empty()) {
      std::vector<ParameterDescription> own;
      std::ranges::copy_if(unit.experts, std::back_inserter(own), [&](const auto& it) { return has(it); });
      add(own, options_.expertGroup ? options_.expertDataGroup : group, whole);
    }
    if (!unit.adapters) continue;
    trained_.push_back(std::make_shared<FlatShard>(
        unit.adapters->parameters, group, options_.trainable, at::kFloat, options_.deferReduce));
    shards.front()->adapt(trained_.back(), unit.adapters->scale);
  }
}

int Model::ownerOf(const ParameterDescription& parameter) const {
  if (!options_.expertGroup || parameter.expert < 0) return -1;
  return static_cast<int>(parameter.expert / (config_.moe->numExperts / options_.expertGroup->worldSize()));
}

bool Model::has(const ParameterDescription& parameter) const {
  const int owner = ownerOf(parameter);
  return owner < 0 || owner == options_.expertGroup->rank();
}

std::vector<Model::Place> Model::places(bool trained) const {
  std::vector<Place> result;
  for (size_t i = 0; i < units_.size(); ++i) {
    for (const auto& shard : unitShards_[i]) {
      const bool isExperts = !units_[i].experts.empty() && shard == unitShards_[i].back();
      auto slot = shard->slots().begin();
      const auto add = [&](const ParameterDescription& parameter) {
        result.push_back({&parameter, shard.get(), has(parameter) ? &*slot++ : nullptr, ownerOf(parameter)});
      };
      if (!trained || shard->gradient().defined()) {
        if (isExperts) std::ranges::for_each(units_[i].experts, add);
        else for (const auto& each : shard->slots()) add(each.parameter);
      }
      if (!trained || !shard->adapters()) continue;
      for (const auto& each : shard->adapters()->slots()) {
        result.push_back({&each.parameter, shard->adapters().get(), &each, -1});
      }
    }
  }
  return result;
}

void Model::initialize(uint64_t seed, bool adaptersOnly) {
  const at::AutoGradMode noGraph(false);
  uint64_t index = 0;
  for (const auto& place : places(adaptersOnly)) {
    const uint64_t own = mix(adaptersOnly ? ~seed : seed, index++);
    if (place.slot) place.shard->scatter(place.shard->data(), *place.slot, initialValue(*place.parameter, own));
  }
}

void Model::load(const std::vector<TensorLocation>& tensors) {
  const at::AutoGradMode noGraph(false);
  const auto located = locateParameters(units_, tensors);
  size_t index = 0;
  for (const auto& place : places(false)) {
    if (place.parameter->role == "value") continue;
    const auto& location = located[index++];
    if (place.slot) place.shard->scatter(place.shard->data(), *place.slot, mapTensor(location));
  }
}

std::shared_ptr<Model> Model::base() const {
  auto model = std::make_shared<Model>(*this);
  model->options_.trainable = false;
  model->trained_.clear();
  for (auto& shards : model->unitShards_) {
    for (auto& shard : shards) shard = shard->base();
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
  TORCH_CHECK(!grad || options_.trainable, "a model that is not trainable has no gradients");
  const at::AutoGradMode mode(grad);
  const auto& context = options_.contextGroup;
  const auto rows = context ? sortRows(packed, config_, context->rank(), context->worldSize())
                            : sortRows(packed, config_, 0, 1);
  const auto scores = runHead(rows, runLayers(rows, grad, routes), grad);
  if (context && config_.moe) routes.sumOver(*context);
  const auto length = static_cast<int64_t>(packed.tokens.size());
  const auto placed = at::zeros({length, scores.size(1)}, scores.options()).index_copy(0, rows.origins, scores);
  return context ? gatherScores(placed, context) : placed;
}

Shards Model::shardsOf(size_t index) const {
  if (index >= units_.size()) return {};
  auto shards = unitShards_[index];
  if (index + 1 == units_.size() && config_.tieWordEmbeddings) shards.push_back(unitShards_[0][0]);
  return shards;
}

UnitOptions Model::unitOptions(size_t index, bool grad) const {
  const bool none = options_.checkpoint == Checkpoint::none, isHead = index + 1 == units_.size();
  return {
      .chunk = isHead ? options_.headChunk : 0,
      .keepWeights = grad && (none || !options_.reshardAfterForward),
      .keepGraph = grad && none && !isHead,
      .after = shardsOf(index + 1),
      // The embedding's backward needs no weights.
      .before = index > 1 ? shardsOf(index - 1) : Shards(),
  };
}

at::Tensor Model::runLayers(const SortedRows& rows, bool grad, RouteTotals& routes) const {
  // Token ids have no gradient; this stands for one, so that backward reaches the embedding.
  const auto anchor = at::zeros({1}, onDevice(at::kFloat)).set_requires_grad(grad);
  auto hidden = runEmbedding(unitShards_[0][0], rows.tokens, anchor, shardsOf(1));
  const auto rotary = rotaryTables(config_, rows.positions);
  int64_t mixtures = 0;
  for (int64_t i = 0; i < config_.numLayers; ++i) {
    const auto mixture = config_.isMixture(i) ? std::make_shared<MixturePass>(
                                                    *config_.moe, rows, mixtures++, options_.expertGroup,
                                                    options_.contextGroup)
                                              : nullptr;
    const auto kept = grad && options_.checkpoint == Checkpoint::selective ? std::make_shared<Kept>() : nullptr;
    const auto layer = [config = config_, rotary, groups = rows.groups, keys = rows.keys, kept, mixture,
                        context = options_.contextGroup, window = config_.windows[i]](
                           const UnitWeights& weights, const at::Tensor& input, int64_t, bool gradientsOnly) {
      const Product product = [&](const std::string& role, const at::Tensor& x) {
        const auto* found = weights.find(role + "_bias");
        const auto bias = found ? *found : at::Tensor();
        const bool keep = kept && (role == "qkv" || role == "o");
        return keep ? kept->product(role, x, weights[role.c_str()], bias, gradientsOnly)
                    : at::linear(x, weights[role.c_str()], bias);
      };
      const Attention attend = [&](const Qkv& qkv) {
        return attendRows(context ? gatherKeys(qkv, keys, context) : qkv, groups, window);
      };
      const Attention attention = [&](const Qkv& qkv) {
        return kept ? kept->attention(attend, qkv, gradientsOnly) : attend(qkv);
      };
      const auto [residual, x] = attentionForward(config, weights, product, input, rotary, attention);
      if (mixture) return residual + mixture->run(weights, x);
      const auto inner = gated(product("gate_up", x));
      if (weights.find("down_bias")) return residual + product("down", inner);
      return AddProduct::apply(residual, inner, weights["down"], gradientsOnly);
    };
    hidden = runUnit(shardsOf(i + 1), layer, hidden, unitOptions(i + 1, grad));
    if (mixture) routes.add(mixture->totals());
  }
  return hidden;
}

at::Tensor Model::runHead(const SortedRows& rows, const at::Tensor& hidden, bool grad) const {
  const auto body = [config = config_, targets = rows.targets, temperatures = rows.temperatures](
                        const UnitWeights& weights, const at::Tensor& input, int64_t begin, bool) {
    const auto x = rmsNorm(input, weights["norm"], config.rmsNormEps);
    if (const auto* value = weights.find("value")) return at::linear(x, *value);
    const auto logits = at::linear(x, weights[config.tieWordEmbeddings ? "embed" : "head"]);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, input.size(0)); };
    return scoreTargets(logits, part(temperatures), part(targets));
  };
  const size_t index = units_.size() - 1;
  return runUnit(shardsOf(index), body, hidden.index_select(0, rows.selected), unitOptions(index, grad));
}

void Model::backward(const at::Tensor& loss) {
  TORCH_CHECK(loss.numel() == 1, "backward takes one number, not a tensor of shape ", loss.sizes());
  TORCH_CHECK(loss.requires_grad(), "the loss has no graph: nothing in it came from forward(rows, true)");
  const at::AutoGradMode graph(true);
  loss.backward();
}

void Model::zeroGradients() {
  for (const auto& shard : trained_) shard->zeroGradient();
}

void Model::reduceGradients() const {
  TORCH_CHECK(options_.trainable, "a model that is not trainable has no gradients");
  for (const auto& shard : trained_) shard->reduceDeferred();
  for (const auto& shard : trained_) shard->finishReduce();
}

double Model::gradientNorm() const {
  const at::AutoGradMode noGraph(false);
  reduceGradients();
  double squares = 0;
  for (const auto& shard : trained_) {
    const auto norm = at::linalg_vector_norm(shard->gradient(), 2, std::nullopt, false, at::kDouble);
    squares += std::pow(norm.item<double>(), 2);
  }
  auto total = at::scalar_tensor(squares, at::kDouble).reshape({1});
  if (options_.group) options_.group->allReduce(total);
  return std::sqrt(total.item<double>());
}

std::vector<std::string> Model::nonFiniteGradients() const {
  const at::AutoGradMode noGraph(false);
  reduceGradients();
  const auto all = places(true);
  std::vector<float> broken;
  for (const auto& [parameter, shard, slot, owner] : all) {
    broken.push_back(!slot || at::isfinite(shard->local(shard->gradient(), *slot)).all().item<bool>() ? 0 : 1);
  }
  auto flags = at::tensor(broken);
  if (options_.group) options_.group->allReduce(flags, Reduce::kMax);
  std::vector<std::string> result;
  for (size_t i = 0; i < all.size(); ++i) {
    if (flags.const_data_ptr<float>()[i] > 0) result.push_back(all[i].parameter->name);
  }
  return result;
}

Model::Place Model::find(const std::string& name, bool trained) const {
  for (const bool trainedOnly : {true, false}) {
    if (trained && !trainedOnly) break;
    for (const auto& place : places(trainedOnly)) {
      if (place.parameter->name == name) return place;
    }
  }
  TORCH_CHECK(false, "the model ", trained ? "trains" : "has", " no parameter '", name, "'");
}

at::Tensor Model::whole(const Place& place, const at::Tensor& flat) const {
  if (place.owner < 0) return place.slot->in(flat);
  auto value = place.slot ? place.slot->in(flat) : at::empty(place.parameter->shape, flat.options());
  options_.expertGroup->startBroadcast(value, place.owner)();
  return value;
}

at::Tensor Model::read(const std::string& name) const {
  const auto place = find(name, false);
  return whole(place, place.shard->gatherWeights(at::kFloat)).clone();
}

at::Tensor Model::readGradient(const std::string& name) const {
  reduceGradients();
  const auto place = find(name, true);
  return whole(place, place.shard->gather(place.shard->gradient())).clone();
}

void Model::writeGradient(const std::string& name, const at::Tensor& value) {
  reduceGradients();
  const auto place = find(name, true);
  const int64_t size = place.parameter->numel();
  TORCH_CHECK(value.numel() == size, "parameter '", name, "' has ", size, " values, not ", value.numel());
  if (place.slot) place.shard->scatter(place.shard->gradient(), *place.slot, value);
}

template <typename Visit>
void Model::forEachParameter(bool trained, Visit visit) const {
  const at::AutoGradMode noGraph(false);
  const FlatShard* gathered = nullptr;
  at::Tensor flat;
  std::exception_ptr failed;  // told at the end: the other ranks gather on
  for (const auto& place : places(trained)) {
    if (place.shard != gathered) {
      flat.reset();
      flat = place.shard->gatherWeights(at::kFloat);
    }
    gathered = place.shard;
    const auto value = whole(place, flat);
    try {
      if (!failed) visit(value);
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (failed) std::rethrow_exception(failed);
}

void Model::save(const std::string& path, const std::vector<uint8_t>& header, bool adaptersOnly) const {
  std::optional<FileWriter> file;
  forEachParameter(adaptersOnly, [&](const at::Tensor& value) {
    if (rank() != 0) return;
    if (!file) {
      file.emplace(path);
      file->write(header.data(), header.size());
    }
    file->write(value);
  });
  if (file) file->close();
}

std::string Model::broadcast(
    const std::shared_ptr<ProcessGroup>& transfer, at::ScalarType dtype, int64_t bucketBytes) const {
  TORCH_CHECK(rank() != 0 || transfer, "rank 0 of the model broadcasts its weights and needs the transfer's group");
  std::optional<WeightSender> sender;
  if (rank() == 0) sender.emplace(*transfer, dtype, bucketBytes);
  forEachParameter(false, [&](const at::Tensor& value) {
    if (sender) sender->add(value);
  });
  return sender ? sender->finish() : "";
}

std::string Model::checksum() const {
  Checksum checksum;
  forEachParameter(false, [&](const at::Tensor& value) { checksum.update(value); });
  return checksum.hexadecimal();
}

int64_t Model::shardSize() const {
  int64_t size = 0;
  for (const auto& shard : trained_) size += shard->data().numel();
  return size;
}

}  // namespace molt

#include "core/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Weights as leaves of a graph.
struct Leaves {
  UnitWeights weights;
  variable_list list;
};

/// One run of a unit's body with a graph of its own.
struct Graph {
  at::Tensor input, output;
};

struct UnitCall : torch::CustomClassHolder {
  Shards shards;
  UnitBody body;
  UnitOptions options;
  Leaves leaves;  // and the graph, where kept
  Graph graph;
};

/// What run(begin, rows) gives for each chunk of `total` rows, end to end; at least one, so that an empty input has its
/// graph too.
template <typename Run>
at::Tensor inChunks(int64_t total, int64_t chunk, Run run) {
  const int64_t step = chunk > 0 ? chunk : std::max<int64_t>(total, 1);
  variable_list parts;
  int64_t begin = 0;
  do {
    parts.push_back(run(begin, std::min(step, total - begin)));
    begin += step;
  } while (begin < total);
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

void prefetch(const Shards& shards) {
  for (const auto& shard : shards) shard->prefetch();
}

/// Weights as leaves; meanwhile `next` is being gathered.
Leaves openLeaves(const UnitCall& call, const Shards& next) {
  Leaves leaves;
  for (const auto& shard : call.shards) {
    const auto flat = shard->gatherWeights();
    for (const auto& slot : shard->layout().fused) {
      const auto weight = slot.in(flat).detach();
      leaves.weights.set(slot.parameter.role, weight);
      if (shard->trains(slot)) leaves.list.push_back(weight.set_requires_grad(true));
    }
  }
  prefetch(next);
  return leaves;
}

Graph record(const UnitCall& call, const Leaves& leaves, const at::Tensor& input, int64_t begin, bool gradientsOnly) {
  const at::AutoGradMode graph(true);
  const auto leaf = input.detach().set_requires_grad(true);
  return {leaf, call.body(leaves.weights, leaf, begin, gradientsOnly)};
}

at::Tensor runForward(UnitCall& call, const at::Tensor& input) {
  const auto leaves = openLeaves(call, call.options.after);
  if (call.options.keepWeights) call.leaves = leaves;
  if (call.options.keepGraph) {
    call.graph = record(call, leaves, input, 0, false);
    return call.graph.output.detach();
  }
  return inChunks(input.size(0), call.options.chunk, [&](int64_t begin, int64_t rows) {
    return call.body(leaves.weights, input.narrow(0, begin, rows), begin, false);
  });
}

/// Adds the weights' gradients to their places and returns the input's (undefined if unused). Ends the graph.
at::Tensor differentiate(
    Graph graph, const Leaves& leaves, const at::Tensor& outputGradient, const variable_list& places) {
  variable_list inputs = leaves.list;
  inputs.push_back(graph.input);
  const auto gradients = torch::autograd::grad(
      {graph.output}, inputs, {outputGradient}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < places.size(); ++i) {
    if (gradients[i].defined()) places[i].add_(gradients[i]);
  }
  return gradients.back();
}

class UnitFunction : public torch::autograd::Function<UnitFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, c10::intrusive_ptr<UnitCall> call) {
    context->save_for_backward({input});
    auto output = runForward(*call, input);
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputGradients) {
    const auto holder = context->saved_data["call"].toCapsule();
    auto& call = static_cast<UnitCall&>(*holder);
    const auto& options = call.options;
    const auto input = context->get_saved_variables()[0];
    const auto leaves = options.keepWeights ? std::exchange(call.leaves, {}) : openLeaves(call, options.before);
    variable_list buffers, places;
    for (const auto& shard : call.shards) {
      buffers.push_back(shard->trains() ? shard->openGradient() : at::Tensor());
      for (const auto& slot : shard->layout().fused) {
        if (shard->trains(slot)) places.push_back(slot.in(buffers.back()));
      }
    }
    const auto inputGradient = inChunks(input.size(0), options.chunk, [&](int64_t begin, int64_t rows) {
      auto graph = options.keepGraph ? std::exchange(call.graph, {})
                                     : record(call, leaves, input.narrow(0, begin, rows), begin, true);
      return differentiate(std::move(graph), leaves, outputGradients[0].narrow(0, begin, rows), places);
    });
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].defined()) call.shards[i]->reduceGradient(buffers[i]);
    }
    return {inputGradient, at::Tensor()};
  }
};

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& anchor,
      const at::Tensor& tokens,
      c10::intrusive_ptr<UnitCall> call) {
    context->save_for_backward({tokens});
    const auto& shard = call->shards[0];
    const auto matrix = shard->slots()[0].in(shard->gatherWeights());
    prefetch(call->options.after);
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return embedTokens(matrix, tokens);
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputGradients) {
    const auto holder = context->saved_data["call"].toCapsule();
    const auto shard = static_cast<const UnitCall&>(*holder).shards[0];
    if (!shard->trains()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const auto buffer = shard->openGradient();
    shard->slots()[0].in(buffer).index_add_(0, context->get_saved_variables()[0], outputGradients[0]);
    shard->reduceGradient(buffer);
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor runEmbedding(
    std::shared_ptr<FlatShard> shard, const at::Tensor& tokens, const at::Tensor& anchor, Shards after) {
  auto call = c10::make_intrusive<UnitCall>();
  call->shards = {std::move(shard)};
  call->options.after = std::move(after);
  return EmbeddingFunction::apply(anchor, tokens, std::move(call));
}

at::Tensor runUnit(Shards shards, UnitBody body, const at::Tensor& input, UnitOptions options) {
  auto call = c10::make_intrusive<UnitCall>();
  call->shards = std::move(shards);
  call->body = std::move(body);
  call->options = std::move(options);
  return UnitFunction::apply(input, std::move(call));
}

}  // namespace molt

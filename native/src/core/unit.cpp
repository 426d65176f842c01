#include "core/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct UnitCall : torch::CustomClassHolder {
  std::vector<std::shared_ptr<FlatShard>> shards;
  UnitBody body;
  int64_t chunk = 0;
};

/// Calls run(begin, rows) for each chunk of `total` rows, at least once, so that an empty input has its graph too.
template <typename Run>
void forEachChunk(int64_t total, int64_t chunk, Run run) {
  const int64_t step = chunk > 0 ? chunk : std::max<int64_t>(total, 1);
  int64_t begin = 0;
  do {
    run(begin, std::min(step, total - begin));
    begin += step;
  } while (begin < total);
}

at::Tensor concatenated(const variable_list& parts) {
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

at::Tensor runForward(const UnitCall& call, const at::Tensor& input) {
  UnitWeights weights;
  for (const auto& shard : call.shards) {
    const auto flat = shard->gatherWeights();
    for (const auto& slot : shard->slots()) weights.set(slot.parameter.role, FlatShard::view(flat, slot));
  }
  if (call.chunk == 0) return call.body(weights, input, 0);
  variable_list outputs;
  forEachChunk(input.size(0), call.chunk, [&](int64_t begin, int64_t rows) {
    outputs.push_back(call.body(weights, input.narrow(0, begin, rows), begin));
  });
  return concatenated(outputs);
}

/// Weights as leaves of a fresh graph, and for each the place where its gradient is added up.
struct Leaves {
  UnitWeights weights;
  variable_list leaves;
  variable_list gradients;
  variable_list buffers;  // one a shard
};

Leaves openLeaves(const UnitCall& call) {
  Leaves opened;
  for (const auto& shard : call.shards) {
    const auto flat = shard->gatherWeights();
    const auto buffer = shard->openGradient();
    opened.buffers.push_back(buffer);
    for (const auto& slot : shard->slots()) {
      auto leaf = FlatShard::view(flat, slot).detach().set_requires_grad(true);
      opened.weights.set(slot.parameter.role, leaf);
      opened.leaves.push_back(std::move(leaf));
      opened.gradients.push_back(FlatShard::view(buffer, slot));
    }
  }
  return opened;
}

/// Recomputes one chunk, adds the weights' gradients to their places and returns the input's (undefined if unused).
at::Tensor backwardChunk(
    const UnitCall& call,
    const Leaves& opened,
    const at::Tensor& input,
    int64_t begin,
    const at::Tensor& outputGradient) {
  const auto leaf = input.detach().set_requires_grad(true);
  at::Tensor output;
  {
    const at::AutoGradMode graph(true);
    output = call.body(opened.weights, leaf, begin);
  }
  variable_list inputs = opened.leaves;
  inputs.push_back(leaf);
  const auto gradients = torch::autograd::grad(
      {output}, inputs, {outputGradient}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < opened.gradients.size(); ++i) {
    if (gradients[i].defined()) opened.gradients[i].add_(gradients[i]);
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
    const auto& call = static_cast<const UnitCall&>(*holder);
    const auto input = context->get_saved_variables()[0];
    const auto opened = openLeaves(call);
    variable_list inputGradients;
    if (call.chunk == 0) {
      inputGradients.push_back(backwardChunk(call, opened, input, 0, outputGradients[0]));
    } else {
      forEachChunk(input.size(0), call.chunk, [&](int64_t begin, int64_t rows) {
        inputGradients.push_back(backwardChunk(
            call, opened, input.narrow(0, begin, rows), begin, outputGradients[0].narrow(0, begin, rows)));
      });
    }
    for (size_t i = 0; i < call.shards.size(); ++i) call.shards[i]->reduceGradient(opened.buffers[i]);
    return {concatenated(inputGradients), at::Tensor()};
  }
};

struct EmbeddingCall : torch::CustomClassHolder {
  std::shared_ptr<FlatShard> shard;
};

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& anchor,
      const at::Tensor& tokens,
      c10::intrusive_ptr<EmbeddingCall> call) {
    context->save_for_backward({tokens});
    const auto matrix = FlatShard::view(call->shard->gatherWeights(), call->shard->slots()[0]);
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return embedTokens(matrix, tokens).to(at::kFloat);
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputGradients) {
    const auto holder = context->saved_data["call"].toCapsule();
    const auto shard = static_cast<const EmbeddingCall&>(*holder).shard;
    const auto buffer = shard->openGradient();
    FlatShard::view(buffer, shard->slots()[0]).index_add_(0, context->get_saved_variables()[0], outputGradients[0]);
    shard->reduceGradient(buffer);
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor runEmbedding(std::shared_ptr<FlatShard> shard, const at::Tensor& tokens, const at::Tensor& anchor) {
  auto call = c10::make_intrusive<EmbeddingCall>();
  call->shard = std::move(shard);
  return EmbeddingFunction::apply(anchor, tokens, std::move(call));
}

at::Tensor runUnit(
    std::vector<std::shared_ptr<FlatShard>> shards, UnitBody body, const at::Tensor& input, int64_t chunk) {
  auto call = c10::make_intrusive<UnitCall>();
  call->shards = std::move(shards);
  call->body = std::move(body);
  call->chunk = chunk;
  return UnitFunction::apply(input, std::move(call));
}

}  // namespace molt

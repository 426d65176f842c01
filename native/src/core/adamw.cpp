#include "core/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

namespace molt {

AdamW::AdamW(std::shared_ptr<Model> model, AdamWOptions options) : model_(std::move(model)), options_(options) {
  const auto& trained = model_->trained();
  TORCH_CHECK(!trained.empty() && trained[0]->gradient().defined(), "AdamW needs a trainable model");
  for (const auto& shard : trained) {
    first_.push_back(at::zeros_like(shard->data()));
    second_.push_back(at::zeros_like(shard->data()));
  }
}

void AdamW::step(double learningRate, double gradientScale) {
  const at::AutoGradMode noGraph(false);
  model_->reduceGradients();
  const auto& shards = model_->trained();
  const auto update = [&](bool decay) {
    std::vector<at::Tensor> weights, gradients, first, second;
    for (size_t i = 0; i < shards.size(); ++i) {
      const int64_t begin = decay ? 0 : shards[i]->decaySize();
      const int64_t size = decay ? shards[i]->decaySize() : shards[i]->data().numel() - begin;
      if (size == 0) continue;
      weights.push_back(shards[i]->data().narrow(0, begin, size));
      gradients.push_back(shards[i]->gradient().narrow(0, begin, size));
      first.push_back(first_[i].narrow(0, begin, size));
      second.push_back(second_[i].narrow(0, begin, size));
    }
    if (weights.empty()) return;
    // The operator reads the step for its bias correction and does not count it.
    const std::vector<at::Tensor> steps(weights.size(), at::scalar_tensor(stepCount + 1, weights[0].options()));
    at::_fused_adamw_(
        weights, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps, learningRate, options_.beta1, options_.beta2,
        decay ? options_.weightDecay : 0.0, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
  };
  for (const auto& shard : shards) {
    if (gradientScale != 1) shard->gradient().mul_(gradientScale);
  }
  update(true);
  update(false);
  ++stepCount;
}

std::vector<std::vector<at::Tensor>> AdamW::state() const {
  std::vector<at::Tensor> weights;
  for (const auto& shard : model_->trained()) weights.push_back(shard->data());
  return {weights, first_, second_};
}

void AdamW::save(const std::string& path, const std::vector<uint8_t>& header) const {
  FileWriter file(path);
  file.write(header.data(), header.size());
  for (const auto& part : state()) {
    for (const auto& tensor : part) file.write(tensor);
  }
  file.close();
}

void AdamW::load(const std::string& path, int64_t offset) {
  const at::AutoGradMode noGraph(false);
  const int64_t whole = 3 * model_->shardSize();
  int64_t next = 0;
  const auto stored = mapTensor({"optimizer shard", path, offset, at::kFloat, {whole}});
  for (const auto& part : state()) {
    for (const auto& tensor : part) {
      tensor.copy_(stored.narrow(0, next, tensor.numel()));
      next += tensor.numel();
    }
  }
}

}  // namespace molt

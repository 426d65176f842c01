#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/model.h"

namespace molt {

struct AdamWOptions {
  double beta1;
  double beta2;
  double eps;
  double weightDecay;
};

/// Fused AdamW on this rank's shards. Runs on the native thread.
class AdamW {
 public:
  AdamW(std::shared_ptr<Model> model, AdamWOptions options);

  /// One update, with gradients multiplied by `gradientScale` in place. Collective where gradients were deferred.
  void step(double learningRate, double gradientScale);
  /// Writes `header`, then weights, first and second moments, each this rank's shards of all units end to end.
  void save(const std::string& path, const std::vector<uint8_t>& header) const;
  /// Reads what `save` wrote after its header, which ends at `offset`.
  void load(const std::string& path, int64_t offset);

  /// Updates done. JavaScript reads and sets it from its own thread.
  std::atomic<int64_t> stepCount = 0;

 private:
  /// Weights, first and second moments, each a list over units.
  std::vector<std::vector<at::Tensor>> state() const;

  std::shared_ptr<Model> model_;
  AdamWOptions options_;
  std::vector<at::Tensor> first_;
  std::vector<at::Tensor> second_;
};

}  // namespace molt

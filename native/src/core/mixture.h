#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "core/decoder.h"
#include "core/exchange.h"
#include "core/packed.h"
#include "core/process_group.h"

// A mixture of experts in place of a layer's MLP: of a softmax over all experts each token takes the likeliest, whose
// outputs are summed by these weights. The router and the sum are float32.
namespace molt {

/// float32 [T, E]. x: [T, H]; router: [E, H].
at::Tensor routerProbabilities(const at::Tensor& x, const at::Tensor& router);

/// Ids of each token's likeliest experts, int64 [T, K], ascending: equal choices are equal in every bit that follows.
at::Tensor likeliestExperts(const MoeConfig& config, const at::Tensor& probabilities);

/// Runs the experts over rows [N, H] sorted by expert, of which counts (int64 [E]) are each one's; gives [N, H].
/// Whatever runs them elsewhere takes this place.
using Experts = std::function<at::Tensor(const at::Tensor& rows, const at::Tensor& counts)>;

/// Calls body(expert, first of its rows, their number) for each that has some.
template <typename Body>
void forEachExpert(const at::Tensor& counts, Body body) {
  const auto host = counts.cpu();
  const int64_t* count = host.const_data_ptr<int64_t>();
  for (int64_t expert = 0, begin = 0; expert < host.numel(); begin += count[expert++]) {
    if (count[expert] > 0) body(expert, begin, count[expert]);
  }
}

/// The weighted sum of the chosen experts' outputs, float32 [T, H]. chosen: int64 [T, K].
at::Tensor mixExperts(
    const MoeConfig& config,
    const at::Tensor& x,
    const at::Tensor& probabilities,
    const at::Tensor& chosen,
    const Experts& experts);

/// All experts of a unit's weights, as `Experts` wants them.
at::Tensor runExperts(
    const MoeConfig& config, const UnitWeights& weights, const at::Tensor& rows, const at::Tensor& counts);

/// What a forward pass finds out about mixtures.
struct RouteTotals {
  double balance = 0;                   // the weighted balance losses' sum
  int64_t differing = 0, compared = 0;  // recorded choices that are not the live ones, and all

  void add(const RouteTotals& other);
  /// Collective.
  void sumOver(ProcessGroup& group);
};

/// One mixture's layer in one forward pass of the trainer, and in its recomputation, which takes the same experts.
class MixturePass {
 public:
  /// index: among the mixtures. expertGroup: shares out the experts; contextGroup: has parts of the rows; or null.
  MixturePass(
      const MoeConfig& config,
      const SortedRows& rows,
      int64_t index,
      std::shared_ptr<ProcessGroup> expertGroup,
      std::shared_ptr<ProcessGroup> contextGroup);

  /// x: [T, H]. Gives float32 [T, H]. Collective in both passes.
  at::Tensor run(const UnitWeights& weights, const at::Tensor& x);

  /// By the first run.
  const RouteTotals& totals() const { return totals_; }

 private:
  void choose(const at::Tensor& probabilities);
  /// The balance loss's gradient, float32 [T, E].
  at::Tensor balanceGradient() const;

  const MoeConfig config_;
  const std::shared_ptr<ProcessGroup> expertGroup_, contextGroup_;
  const at::Tensor recorded_;      // int64 [T, K] or undefined
  const at::Tensor rowOf_;         // int64 [T]
  const at::Tensor balanceScale_;  // float32 [B, 1] or undefined
  at::Tensor chosen_;              // int64 [T, K]
  ExchangePlan plan_;              // with an expert group
  RouteTotals totals_;
};

}  // namespace molt

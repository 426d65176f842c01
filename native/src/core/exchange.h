#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/process_group.h"

// Expert parallel: rows go to the ranks that have their experts, and come back.
namespace molt {

/// Who sends how many rows to whom. Made once by forward; a recomputation uses it again.
struct ExchangePlan {
  std::vector<int64_t> sent, received;  // rows to and from each rank
  at::Tensor counts;                    // int64, received rows of each of this rank's experts
  at::Tensor order;                     // int64, received rows sorted by expert; from one expert by rank
  at::Tensor back;                      // its inverse
};

/// counts: this rank's rows of each expert of all, int64 [E]; rank r of the group has the r-th run of experts.
/// Collective.
ExchangePlan planExchange(const at::Tensor& counts, ProcessGroup& group);

/// rows: [N, H], sorted by expert. Gives those of this rank's experts, from all ranks, sorted by expert. Collective in
/// both passes.
at::Tensor sendToExperts(const at::Tensor& rows, const ExchangePlan& plan, std::shared_ptr<ProcessGroup> group);

/// The way back.
at::Tensor sendFromExperts(const at::Tensor& rows, const ExchangePlan& plan, std::shared_ptr<ProcessGroup> group);

}  // namespace molt

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "core/decoder.h"
#include "core/process_group.h"

// Context parallel: each rank of a group has its part of every row; queries stay, keys and values come together.
namespace molt {

/// Where the positions of whole rows lie once every rank's part is gathered.
struct KeyOrder {
  at::Tensor places;  // int64 [keys], into parts of `most` positions each
  int64_t most;       // positions of the longest part
};

/// qkv with the keys and values of whole rows; their gradients are summed over the ranks. Collective in both passes.
Qkv gatherKeys(const Qkv& qkv, const KeyOrder& order, std::shared_ptr<ProcessGroup> group);

/// The sum over ranks of scores that are zero outside of each one's part. Every rank computes the same loss of it, so
/// backward leaves each the gradient of its own part. Collective.
at::Tensor gatherScores(const at::Tensor& scores, const std::shared_ptr<ProcessGroup>& group);

}  // namespace molt

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/context.h"
#include "core/decoder.h"

namespace molt {

/// Rows laid end to end, as they come from JavaScript (native/index.d.ts says what each holds).
struct PackedRows {
  std::vector<int32_t> tokens;        // [T]
  std::vector<int32_t> cu;            // [B+1]
  std::vector<int32_t> targets;       // [T]
  std::vector<float> temperatures;    // [T]
  std::vector<int16_t> routes;        // [T, mixtures, K] or empty
  std::vector<float> balance;         // [B] or empty
};

/// Neighbouring rows of one length, and a part of each that a rank has: two under context parallel, else all of it.
struct RowGroup {
  int64_t whole;   // length of a row
  int64_t first;   // where in its row the part begins
  int64_t length;  // of the part
  int64_t begin;   // first position among the rank's
  int64_t keys;    // first position among all ranks'
  int64_t rows;
};

/// The same rows sorted by length, so that attention runs in a few batches without padding; or a rank's part of each.
struct SortedRows {
  at::Tensor tokens;        // int64 [T]
  at::Tensor positions;     // int64 [T], from 0 in each row
  std::vector<RowGroup> groups;
  at::Tensor selected;      // int64 [N] sorted positions that have a target
  at::Tensor origins;       // int64 [N] where each of them was in the given order
  at::Tensor targets;       // int64 [N]
  at::Tensor temperatures;  // float32 [N, 1]
  KeyOrder keys;            // under context parallel
  // For mixtures of experts.
  at::Tensor routes;        // int64 [T, mixtures, K]; undefined where none are given
  at::Tensor rowOf;         // int64 [T]
  at::Tensor balanceScale;  // float32 [B, 1], the balance loss's weight over the row's squared length; or undefined
};

/// Throws on ids outside the vocabulary, broken boundaries, temperatures that are not positive and routes to no expert.
/// Each row is cut into twice as many even pieces as there are `parts`; `part` has two of them, that mirror each other.
SortedRows sortRows(const PackedRows& rows, const DecoderConfig& config, int64_t part, int64_t parts);

/// Causal attention within each row over the last `window` keys (0: all), [T, heads, D]; keys and values are of whole
/// rows.
at::Tensor attendRows(const Qkv& qkv, const std::vector<RowGroup>& groups, int64_t window);

}  // namespace molt

#include "core/packed.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/device.h"
#include "core/flash.h"

namespace molt {
namespace {

void checkRows(const PackedRows& rows, int64_t vocabSize) {
  const auto total = static_cast<int64_t>(rows.tokens.size());
  TORCH_CHECK(total > 0, "packed rows hold no token");
  TORCH_CHECK(
      rows.targets.size() == rows.tokens.size() && rows.temperatures.size() == rows.tokens.size(),
      "packed rows differ in length: ", total, " tokens, ", rows.targets.size(), " targets, ",
      rows.temperatures.size(), " temperatures");
  TORCH_CHECK(
      rows.cu.size() > 1 && rows.cu.front() == 0 && rows.cu.back() == total &&
          std::is_sorted(rows.cu.begin(), rows.cu.end()),
      "row boundaries must rise from 0 to the ", total, " tokens");
  for (int64_t t = 0; t < total; ++t) {
    const auto token = rows.tokens[t];
    const auto target = rows.targets[t];
    TORCH_CHECK(
        token >= 0 && token < vocabSize, "token ", token, " at position ", t, " is outside the vocabulary of ",
        vocabSize);
    TORCH_CHECK(
        target >= -1 && target < vocabSize, "target ", target, " at position ", t, " is outside the vocabulary of ",
        vocabSize);
    TORCH_CHECK(
        target < 0 || rows.temperatures[t] > 0, "temperature ", rows.temperatures[t], " at position ", t,
        " is not positive");
  }
}

void checkMixture(const PackedRows& rows, const DecoderConfig& config) {
  TORCH_CHECK(config.moe || rows.balance.empty(), "only a mixture of experts has a balance loss");
  TORCH_CHECK(
      rows.balance.empty() || rows.balance.size() + 1 == rows.cu.size(), "packed rows have ", rows.cu.size() - 1,
      " rows, but ", rows.balance.size(), " weights of the balance loss");
  if (rows.routes.empty()) return;
  const auto choices = static_cast<size_t>(config.moe ? config.moe->mixtures() * config.moe->expertsPerToken : 0);
  TORCH_CHECK(
      rows.routes.size() == rows.tokens.size() * choices, "each of ", rows.tokens.size(), " tokens has ", choices,
      " choices of experts in all layers together, not ", rows.routes.size(), " in all");
  for (size_t i = 0; i < rows.routes.size(); ++i) {
    TORCH_CHECK(
        rows.routes[i] >= -1 && rows.routes[i] < config.moe->numExperts, "the route of position ", i / choices,
        " leads to expert ", rows.routes[i], " of ", config.moe->numExperts);
  }
}

}  // namespace

SortedRows sortRows(const PackedRows& rows, const DecoderConfig& config) {
  checkRows(rows, config.vocabSize);
  checkMixture(rows, config);
  const auto length = [&](size_t row) { return rows.cu[row + 1] - rows.cu[row]; };
  std::vector<size_t> order(rows.cu.size() - 1);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return length(a) < length(b); });
  std::vector<int64_t> tokens, positions, places, rowOf, selected, origins, targets;
  std::vector<float> temperatures, balanceScale;
  SortedRows sorted;
  for (const size_t row : order) {
    if (length(row) == 0) continue;
    if (sorted.groups.empty() || sorted.groups.back().length != length(row)) {
      sorted.groups.push_back({static_cast<int64_t>(tokens.size()), 0, length(row)});
    }
    ++sorted.groups.back().rows;
    const auto squared = static_cast<float>(length(row)) * static_cast<float>(length(row));
    balanceScale.push_back(rows.balance.empty() ? 0 : rows.balance[row] / squared);
    for (int32_t t = rows.cu[row]; t < rows.cu[row + 1]; ++t) {
      if (rows.targets[t] >= 0) {
        selected.push_back(static_cast<int64_t>(tokens.size()));
        origins.push_back(t);
        targets.push_back(rows.targets[t]);
        temperatures.push_back(rows.temperatures[t]);
      }
      tokens.push_back(rows.tokens[t]);
      places.push_back(t);
      rowOf.push_back(static_cast<int64_t>(balanceScale.size()) - 1);
      positions.push_back(t - rows.cu[row]);
    }
  }
  sorted.tokens = at::tensor(tokens);
  sorted.positions = at::tensor(positions);
  sorted.selected = at::tensor(selected, at::kLong);
  sorted.origins = at::tensor(origins, at::kLong);
  sorted.targets = at::tensor(targets, at::kLong);
  sorted.temperatures = at::tensor(temperatures, at::kFloat).unsqueeze(1);
  sorted.rowOf = at::tensor(rowOf);
  if (!rows.balance.empty()) sorted.balanceScale = at::tensor(balanceScale).unsqueeze(1);
  if (!rows.routes.empty()) {
    const auto routes = at::tensor(rows.routes, at::kLong);
    const auto shaped = routes.view({-1, config.moe->mixtures(), config.moe->expertsPerToken});
    sorted.routes = shaped.index_select(0, at::tensor(places));
  }
  for (auto* tensor : {&sorted.tokens, &sorted.positions, &sorted.selected, &sorted.origins, &sorted.targets,
                       &sorted.temperatures, &sorted.rowOf, &sorted.balanceScale, &sorted.routes}) {
    if (tensor->defined()) *tensor = tensor->to(computeDevice());
  }
  return sorted;
}

at::Tensor attendRows(const Qkv& qkv, const std::vector<RowGroup>& groups, int64_t window) {
  if (qkv.q.is_cuda() && qkv.q.scalar_type() != at::kFloat) return flashAttendRows(qkv, groups, window);
  std::vector<at::Tensor> outputs;
  outputs.reserve(groups.size());
  for (const auto& group : groups) {
    const int64_t total = group.rows * group.length;
    // [rows, heads, length, D]
    const auto batch = [&](const at::Tensor& x) {
      return x.narrow(0, group.begin, total).view({group.rows, group.length, x.size(1), x.size(2)}).transpose(1, 2);
    };
    std::optional<at::Tensor> mask;
    if (window > 0 && window < group.length) {
      mask = at::ones({group.length, group.length}, qkv.q.options().dtype(at::kBool)).tril_().triu_(1 - window);
    }
    const auto attended = at::scaled_dot_product_attention(
        batch(qkv.q), batch(qkv.k), batch(qkv.v), mask, /*dropout_p=*/0.0, /*is_causal=*/!mask,
        /*scale=*/{}, /*enable_gqa=*/qkv.q.size(1) != qkv.k.size(1));
    outputs.push_back(attended.transpose(1, 2).reshape({total, qkv.q.size(1), qkv.q.size(2)}));
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs);
}

}  // namespace molt

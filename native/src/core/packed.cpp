#include "core/packed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

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

using Lengths = std::vector<std::pair<int64_t, int64_t>>;  // of rows, and how many have it

/// Where a rank's pieces of a row begin and end: an early one and the late one that mirrors it, since what attention
/// costs grows along a row.
Lengths piecesOf(int64_t whole, int64_t part, int64_t parts) {
  if (parts == 1) return {{0, whole}};
  const auto cut = [&](int64_t piece) { return whole * piece / (2 * parts); };
  const int64_t late = 2 * parts - 1 - part;
  return {{cut(part), cut(part + 1)}, {cut(late), cut(late + 1)}};
}

KeyOrder orderKeys(const Lengths& lengths, int64_t parts) {
  std::vector<std::vector<int64_t>> owned(parts);
  int64_t total = 0;
  for (const auto& [whole, rows] : lengths) {
    for (int64_t part = 0; part < parts; ++part) {
      for (const auto& [first, end] : piecesOf(whole, part, parts)) {
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t t = first; t < end; ++t) owned[part].push_back(total + row * whole + t);
        }
      }
    }
    total += rows * whole;
  }
  size_t most = 0;
  for (const auto& positions : owned) most = std::max(most, positions.size());
  std::vector<int64_t> places(total);
  for (int64_t part = 0; part < parts; ++part) {
    for (size_t i = 0; i < owned[part].size(); ++i) places[owned[part][i]] = static_cast<int64_t>(part * most + i);
  }
  return {at::tensor(places, at::kLong).to(computeDevice()), static_cast<int64_t>(most)};
}

}  // namespace

SortedRows sortRows(const PackedRows& rows, const DecoderConfig& config, int64_t part, int64_t parts) {
  checkRows(rows, config.vocabSize);
  checkMixture(rows, config);
  const auto length = [&](size_t row) { return rows.cu[row + 1] - rows.cu[row]; };
  std::vector<size_t> order(rows.cu.size() - 1);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return length(a) < length(b); });
  std::vector<int64_t> tokens, positions, places, rowOf, selected, origins, targets;
  std::vector<float> temperatures, balanceScale;
  SortedRows sorted;
  Lengths lengths;
  int64_t keys = 0;
  for (auto next = order.begin(); next != order.end();) {
    const int64_t whole = length(*next);
    const auto isOther = [&](size_t row) { return length(row) != whole; };
    const auto first = std::exchange(next, std::find_if(next, order.end(), isOther));
    if (whole == 0) continue;
    for (const auto& [begin, end] : piecesOf(whole, part, parts)) {
      sorted.groups.push_back({whole, begin, end - begin, static_cast<int64_t>(tokens.size()), keys, next - first});
      for (auto row = first; row != next; ++row) {
        for (int64_t t = rows.cu[*row] + begin; t < rows.cu[*row] + end; ++t) {
          if (rows.targets[t] >= 0) {
            selected.push_back(static_cast<int64_t>(tokens.size()));
            origins.push_back(t);
            targets.push_back(rows.targets[t]);
            temperatures.push_back(rows.temperatures[t]);
          }
          tokens.push_back(rows.tokens[t]);
          places.push_back(t);
          rowOf.push_back(static_cast<int64_t>(balanceScale.size()) + (row - first));
          positions.push_back(t - rows.cu[*row]);
        }
      }
    }
    const auto squared = static_cast<float>(whole) * static_cast<float>(whole);
    for (auto row = first; row != next; ++row) {
      balanceScale.push_back(rows.balance.empty() ? 0 : rows.balance[*row] / squared);
    }
    lengths.emplace_back(whole, next - first);
    keys += whole * (next - first);
  }
  const auto longs = [](const auto& values) { return at::tensor(values, at::kLong).to(computeDevice()); };
  const auto floats = [](const auto& values) { return at::tensor(values).unsqueeze(1).to(computeDevice()); };
  sorted.tokens = longs(tokens);
  sorted.positions = longs(positions);
  sorted.selected = longs(selected);
  sorted.origins = longs(origins);
  sorted.targets = longs(targets);
  sorted.temperatures = floats(temperatures);
  if (parts > 1) sorted.keys = orderKeys(lengths, parts);
  sorted.rowOf = longs(rowOf);
  if (!rows.balance.empty()) sorted.balanceScale = floats(balanceScale);
  if (!rows.routes.empty()) {
    const auto shaped = longs(rows.routes).view({-1, config.moe->mixtures(), config.moe->expertsPerToken});
    sorted.routes = shaped.index_select(0, longs(places));
  }
  return sorted;
}

at::Tensor attendRows(const Qkv& qkv, const std::vector<RowGroup>& groups, int64_t window) {
  // A rank without queries takes part in the gradient of the keys all the same.
  if (qkv.q.size(0) == 0) return (qkv.k.narrow(0, 0, 0) + qkv.v.narrow(0, 0, 0)).reshape_as(qkv.q);
  if (qkv.q.is_cuda() && qkv.q.scalar_type() != at::kFloat) return flashAttendRows(qkv, groups, window);
  std::vector<at::Tensor> outputs;
  outputs.reserve(groups.size());
  for (const auto& group : groups) {
    if (group.length == 0) continue;
    // [rows, heads, length, D]
    const auto batch = [&](const at::Tensor& x, int64_t begin, int64_t length) {
      const auto rows = x.narrow(0, begin, group.rows * length);
      return rows.view({group.rows, length, x.size(1), x.size(2)}).transpose(1, 2);
    };
    // Later keys are masked for every query.
    const int64_t seen = group.first + group.length;
    const auto keys = [&](const at::Tensor& x) { return batch(x, group.keys, group.whole).narrow(2, 0, seen); };
    std::optional<at::Tensor> mask;
    if (group.first > 0 || (window > 0 && window < seen)) {
      mask = at::ones({group.length, seen}, qkv.q.options().dtype(at::kBool)).tril_(group.first);
      if (window > 0) mask->triu_(group.first + 1 - window);
    }
    const auto attended = at::scaled_dot_product_attention(
        batch(qkv.q, group.begin, group.length), keys(qkv.k), keys(qkv.v), mask, /*dropout_p=*/0.0,
        /*is_causal=*/!mask, /*scale=*/{}, /*enable_gqa=*/qkv.q.size(1) != qkv.k.size(1));
    outputs.push_back(attended.transpose(1, 2).reshape({-1, qkv.q.size(1), qkv.q.size(2)}));
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs);
}

}  // namespace molt

#include "core/flash.h"

#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>

namespace molt {

at::Tensor flashAttendRows(const Qkv& qkv, const std::vector<RowGroup>& groups, int64_t window) {
  std::vector<int32_t> queryEnds{0}, keyEnds{0};
  std::vector<int64_t> places;  // of the keys that each part sees: those of its row until its own end
  int64_t longest = 0, widest = 0;
  const auto isWhole = [](const RowGroup& group) { return group.length == group.whole || group.length == 0; };
  const bool arePlaced = std::ranges::all_of(groups, isWhole);
  for (const auto& group : groups) {
    if (group.length == 0) continue;
    const int64_t seen = group.first + group.length;
    longest = std::max(longest, group.length);
    widest = std::max(widest, seen);
    for (int64_t row = 0; row < group.rows; ++row) {
      queryEnds.push_back(queryEnds.back() + static_cast<int32_t>(group.length));
      keyEnds.push_back(keyEnds.back() + static_cast<int32_t>(seen));
      for (int64_t t = 0; t < seen && !arePlaced; ++t) places.push_back(group.keys + row * group.whole + t);
    }
  }
  const auto device = qkv.q.device();
  const auto select = [&, index = arePlaced ? at::Tensor() : at::tensor(places, at::kLong).to(device)](
                          const at::Tensor& x) { return arePlaced ? x.contiguous() : x.index_select(0, index); };
  const auto queries = at::tensor(queryEnds, at::kInt).to(device), keys = at::tensor(keyEnds, at::kInt).to(device);
  const std::optional<double> scale;
  const int64_t left = window > 0 ? window - 1 : -1;
  // Of a part the last query sees the last key, which is how this kernel understands causal.
  return std::get<0>(at::_flash_attention_forward(
      qkv.q.contiguous(), select(qkv.k), select(qkv.v), queries, keys, longest, widest, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, scale, left, /*window_size_right=*/0));
}

}  // namespace molt

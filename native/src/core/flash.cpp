#include "core/flash.h"

#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>

namespace molt {

at::Tensor flashAttendRows(const Qkv& qkv, const std::vector<RowGroup>& groups, int64_t window) {
  std::vector<int32_t> boundaries{0};
  int64_t longest = 0;
  for (const auto& group : groups) {
    longest = std::max(longest, group.length);
    for (int64_t row = 0; row < group.rows; ++row) {
      boundaries.push_back(boundaries.back() + static_cast<int32_t>(group.length));
    }
  }
  const auto cu = at::tensor(boundaries, at::kInt).to(qkv.q.device());
  const std::optional<double> scale;
  const int64_t left = window > 0 ? window - 1 : -1;
  return std::get<0>(at::_flash_attention_forward(
      qkv.q.contiguous(), qkv.k.contiguous(), qkv.v.contiguous(), cu, cu, longest, longest, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, scale, left, /*window_size_right=*/0));
}

}  // namespace molt

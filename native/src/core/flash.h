#pragma once

#include <vector>

#include "core/packed.h"

namespace molt {

/// `attendRows` by the kernel for rows of any length on the GPU, in bfloat16 or float16.
at::Tensor flashAttendRows(const Qkv& qkv, const std::vector<RowGroup>& groups, int64_t window);

}  // namespace molt

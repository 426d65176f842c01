#pragma once
#include <cstdint>

namespace molt {

struct MemoryUse {
  int64_t current;
  int64_t peak;
};

/// From here on counts what libtorch's CPU allocator holds. Safe to call again.
void countMemory();

/// Bytes held now, and at most since the last call with `reset`.
MemoryUse memoryUse(bool reset);

}  // namespace molt

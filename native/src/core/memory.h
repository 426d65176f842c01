#pragma once
#include <cstdint>

namespace molt {

struct MemoryUse {
  int64_t current;
  int64_t peak;
};

/// From here on counts what libtorch's CPU allocator holds; of the GPU's libtorch counts by itself. Safe to call again.
void countMemory();

/// Bytes held now on the device that models compute on, and at most since the last call with `reset`.
MemoryUse memoryUse(bool reset);

}  // namespace molt

#include "core/memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <atomic>

namespace molt {

namespace {

std::atomic<int64_t> current{0};
std::atomic<int64_t> peak{0};

void freeCounted(void* data) {
  current -= static_cast<int64_t>(malloc_usable_size(data));
  c10::free_cpu(data);
}

/// libtorch's own allocation, counted. The size is asked of malloc, so that the context of a block stays its address
/// (`raw_deallocate` needs that).
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    const int64_t now = current += static_cast<int64_t>(malloc_usable_size(data));
    int64_t seen = peak.load();
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    return {data, data, &freeCounted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freeCounted; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void countMemory() {
  // Lives as long as the process: blocks may be freed in static destructors.
  static auto* allocator = new CountingAllocator();
  c10::SetCPUAllocator(allocator, 1);
}

MemoryUse memoryUse(bool reset) {
  const MemoryUse use{current, peak};
  if (reset) peak = current.load();
  return use;
}

}  // namespace molt

#include "core/memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <vector>

#include "core/device.h"

namespace molt {

namespace {

std::atomic<int64_t> current{0};
std::atomic<int64_t> peak{0};

/// malloc gives large blocks back, and the kernel clears the pages of the next one anew: a sixth of a training step. So
/// they are kept here for the next request of their size, as long as that does not raise the most that was ever held.
constexpr int64_t kLarge = 1 << 20;
struct Kept {
  int64_t size;
  void* data;
};
std::mutex mutex;
// The longest kept first. Never destroyed: blocks may be freed in static destructors.
auto& kept = *new std::vector<Kept>;
int64_t keptBytes = 0;
int64_t mostHeld = 0;

/// Sizes of large blocks are multiples of this, so that they fit more than one request. Untouched pages take no memory.
int64_t stepOf(int64_t bytes) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)) / 8);
}

void trimKept() {
  mostHeld = std::max(mostHeld, current.load());
  auto end = kept.begin();
  for (; end != kept.end() && keptBytes + current > mostHeld; ++end) {
    keptBytes -= end->size;
    c10::free_cpu(end->data);
  }
  kept.erase(kept.begin(), end);
}

void* takeLarge(int64_t bytes) {
  const int64_t step = stepOf(bytes), size = (bytes + step - 1) / step * step;
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find(kept.rbegin(), kept.rend(), size, &Kept::size);
  void* data = found == kept.rend() ? c10::alloc_cpu(size) : found->data;
  if (found != kept.rend()) {
    keptBytes -= size;
    kept.erase(std::next(found).base());
  }
  current += static_cast<int64_t>(malloc_usable_size(data));
  trimKept();
  return data;
}

void freeCounted(void* data) {
  const auto size = static_cast<int64_t>(malloc_usable_size(data));
  current -= size;
  if (size < kLarge) return c10::free_cpu(data);
  const std::lock_guard lock(mutex);
  kept.push_back({size / stepOf(size) * stepOf(size), data});
  keptBytes += kept.back().size;
  trimKept();
}

/// libtorch's own allocation, counted. The size is asked of malloc, so that the context of a block stays its address
/// (`raw_deallocate` needs that).
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const bool large = bytes >= kLarge;
    void* data = large ? takeLarge(bytes) : c10::alloc_cpu(bytes);
    const int64_t now = large ? current.load() : current += static_cast<int64_t>(malloc_usable_size(data));
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
  if (const auto device = computeDevice(); device.is_cuda()) {
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto held = at::accelerator::getDeviceStats(device.index()).allocated_bytes[all];
    if (reset) at::accelerator::resetPeakStats(device.index());
    return {held.current, held.peak};
  }
  const MemoryUse use{current, peak};
  if (reset) peak = current.load();
  return use;
}

}  // namespace molt

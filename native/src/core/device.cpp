#include "core/device.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdlib>
#include <string>

namespace molt {

at::Device computeDevice() {
  static const at::Device device = [] {
    const char* value = std::getenv("MOLT_DEVICE");
    const std::string asked = value ? value : "";
    TORCH_CHECK(asked.empty() || asked == "cpu" || asked == "cuda", "MOLT_DEVICE is '", asked, "', not cpu or cuda");
    const bool there = at::detail::getCUDAHooks().hasCUDA();
    TORCH_CHECK(
        there || asked != "cuda", "MOLT_DEVICE is cuda, but libtorch of this build sees no GPU: is it a CPU build, or "
        "the driver missing?");
    return there && asked != "cpu" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  }();
  return device;
}

}  // namespace molt

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/process_group.h"
#include "core/tensor_io.h"

// Weights on their way from a trainer to engines. Tensors travel in the order of their names, laid end to end without
// padding; a bucket, one broadcast, ends with the tensor that brings it over its size, which is vLLM's rule for
// `packed`. Two are on their way at once, so that whatever is done with one (gathering, hashing, copying) is done while
// the other travels.
namespace molt {

/// Of the embedded engine's buckets.
constexpr int64_t kBucketBytes = 16 << 20;

/// Rank 0's side.
class WeightSender {
 public:
  /// dtype: on the way.
  WeightSender(ProcessGroup& transfer, at::ScalarType dtype, int64_t bucketBytes);
  /// The next tensor, which must not change before `finish`.
  void add(const at::Tensor& values);
  /// Sends the rest and waits; the checksum of the values that were given, where they went through the CPU.
  std::string finish();

 private:
  void flush();

  ProcessGroup& transfer_;
  const at::ScalarType dtype_;
  const int64_t bucketBytes_;
  Checksum checksum_;
  std::vector<at::Tensor> bucket_;  // flat
  int64_t bytes_ = 0;
  std::function<void()> pending_;
};

/// The other ranks' side, of float32 on the CPU: calls arrived(i, values) for each of `shapes` in order.
void receiveWeights(
    ProcessGroup& transfer,
    const std::vector<at::IntArrayRef>& shapes,
    const std::function<void(size_t, const at::Tensor&)>& arrived);

}  // namespace molt

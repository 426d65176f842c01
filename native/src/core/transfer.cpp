#include "core/transfer.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <utility>

namespace molt {

namespace {

/// Bucket b holds tensors ends[b - 1] .. ends[b].
std::vector<size_t> bucketEnds(const std::vector<int64_t>& bytes, int64_t bucketBytes) {
  std::vector<size_t> ends;
  int64_t total = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    total += bytes[i];
    if (total <= bucketBytes && i + 1 < bytes.size()) continue;
    ends.push_back(i + 1);
    total = 0;
  }
  return ends;
}

}  // namespace

WeightSender::WeightSender(ProcessGroup& transfer, at::ScalarType dtype, int64_t bucketBytes)
    : transfer_(transfer), dtype_(dtype), bucketBytes_(bucketBytes) {}

void WeightSender::add(const at::Tensor& values) {
  const auto placed = values.to(transfer_.device());
  if (placed.is_cpu()) checksum_.update(placed);
  bucket_.push_back(placed.to(dtype_).reshape({-1}));
  bytes_ += static_cast<int64_t>(bucket_.back().nbytes());
  if (bytes_ > bucketBytes_) flush();
}

void WeightSender::flush() {
  if (bucket_.empty()) return;
  const auto buffer = bucket_.size() == 1 ? bucket_[0] : at::cat(bucket_);
  bucket_.clear();
  bytes_ = 0;
  const auto previous = std::exchange(pending_, transfer_.startBroadcast(buffer, 0));
  if (previous) previous();
}

std::string WeightSender::finish() {
  flush();
  if (pending_) std::exchange(pending_, nullptr)();
  if (transfer_.device().is_cuda()) at::accelerator::synchronizeDevice(transfer_.device().index());
  return checksum_.hexadecimal();
}

void receiveWeights(
    ProcessGroup& transfer,
    const std::vector<at::IntArrayRef>& shapes,
    const std::function<void(size_t, const at::Tensor&)>& arrived) {
  std::vector<int64_t> sizes, bytes;
  for (const auto& shape : shapes) {
    sizes.push_back(c10::multiply_integers(shape));
    bytes.push_back(sizes.back() * static_cast<int64_t>(sizeof(float)));
  }
  struct Bucket {
    size_t begin, end;
    at::Tensor buffer;
    std::function<void()> wait;
  };
  const auto ends = bucketEnds(bytes, kBucketBytes);
  const auto post = [&](size_t b) {
    const size_t begin = b == 0 ? 0 : ends[b - 1];
    int64_t total = 0;
    for (size_t i = begin; i < ends[b]; ++i) total += sizes[i];
    const auto buffer = at::empty({total}, at::kFloat);
    return Bucket{begin, ends[b], buffer, transfer.startBroadcast(buffer, 0)};
  };
  if (ends.empty()) return;
  auto next = post(0);
  for (size_t b = 0; b < ends.size(); ++b) {
    const auto bucket = std::exchange(next, b + 1 < ends.size() ? post(b + 1) : Bucket{});
    bucket.wait();
    int64_t offset = 0;
    for (size_t i = bucket.begin; i < bucket.end; offset += sizes[i++]) {
      arrived(i, bucket.buffer.narrow(0, offset, sizes[i]).view(shapes[i]));
    }
  }
}

}  // namespace molt

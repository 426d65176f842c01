#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace molt {

struct ProcessGroupOptions {
  std::string host;
  uint16_t port;
  int rank;
  int worldSize;
  std::string prefix;
  bool serveStore;
  std::chrono::milliseconds timeout;
  std::string backend;  // gloo, nccl or vllm; empty: the device's own
};

enum class Reduce { kSum, kMax };

/// c10d over Gloo. Every operation is collective, blocks until it is done, and throws when `timeout` passes or a peer
/// dies; call them on the native thread. Tensors are contiguous and on the group's device. Over NCCL operations return
/// once they are queued on the GPU.
class ProcessGroup {
 public:
  /// Meets the other ranks through the store.
  explicit ProcessGroup(const ProcessGroupOptions& options);
  ~ProcessGroup();

  int rank() const { return rank_; }
  int worldSize() const { return worldSize_; }
  at::Device device() const { return device_; }
  /// In place, from and to any device.
  void allReduce(at::Tensor data, Reduce op = Reduce::kSum);
  /// In place, from `root`. What it returns waits for it.
  std::function<void()> startBroadcast(at::Tensor data, int root);
  /// `whole` is `worldSize` shards laid end to end, in rank order.
  void allGather(at::Tensor whole, at::Tensor shard);
  /// The same, under way: what it returns waits for its end, within the deadline counted from here.
  std::function<void()> startAllGather(at::Tensor whole, at::Tensor shard);
  /// Sends rows sentCounts[r] of `sent`, which lie in rank order, to rank r; so `received` is filled.
  void allToAll(
      at::Tensor received, at::Tensor sent, std::vector<int64_t> receivedCounts, std::vector<int64_t> sentCounts);
  /// What it returns waits for this rank's shard of `whole`, summed over the ranks in their order.
  std::function<at::Tensor()> startReduceScatter(at::Tensor whole);
  /// Adds this rank's shard of `whole`, summed over the ranks, to `sum`. One such is under way at a time: it is added
  /// before the next begins, or by `finishSum`.
  void startSum(at::Tensor sum, at::Tensor whole);
  void finishSum();
  void barrier();
  /// From any thread, more than once; later operations throw.
  void close();

 private:
  c10::intrusive_ptr<c10d::Backend> backend();
  /// What waits for a collective that was started; `what` names it in the error.
  std::function<void()> started(const char* what, int64_t bytes, c10::intrusive_ptr<c10d::Work> work);

  const int rank_;
  const int worldSize_;
  const at::Device device_;
  const std::string name_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::function<void()> addSum_;  // null where none is under way
};

}  // namespace molt

#include "core/nccl.h"

#include <ATen/ops/zeros.h>
#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef MOLT_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

#include <cstdlib>

#include "core/device.h"
#include "core/network.h"

namespace molt {

namespace {

constexpr size_t kUniqueIdBytes = 128;

void publishUniqueId(c10d::Store& server, const std::vector<uint8_t>& uniqueId) {
  TORCH_CHECK(uniqueId.size() == kUniqueIdBytes, "a unique id has 128 bytes, not ", uniqueId.size());
  // The program of a pickle, protocol 4: _unpickle(ncclUniqueId, ({}, the bytes)), as ctypes writes it.
  std::string pickle =
      "\x80\x04"
      "c_ctypes\n_unpickle\n"
      "cvllm.distributed.device_communicators.pynccl_wrapper\nncclUniqueId\n"
      "}C\x80";
  pickle.append(uniqueId.begin(), uniqueId.end());
  pickle += "\x86\x86R.";
  server.set("broadcast_from/0/0", std::vector<uint8_t>(pickle.begin(), pickle.end()));
}

/// c10d's own exchange of the unique id goes on in this process; vLLM's engines see it in theirs.
class VllmStore final : public c10d::HashStore {
 public:
  explicit VllmStore(c10::intrusive_ptr<c10d::Store> server) : server_(std::move(server)) {}
  using c10d::HashStore::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    if (value.size() == kUniqueIdBytes) publishUniqueId(*server_, value);
    HashStore::set(key, value);
  }

 private:
  c10::intrusive_ptr<c10d::Store> server_;
};

/// A variable of the environment while it lives; what was there before comes back.
class ScopedEnv final {
 public:
  ScopedEnv(const char* name, const std::string& value) : name_(name), before_(c10::utils::get_env(name)) {
    c10::utils::set_env(name, value.c_str());
  }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;
  ~ScopedEnv() {
    if (before_) c10::utils::set_env(name_, before_->c_str());
    else ::unsetenv(name_);
  }

 private:
  const char* name_;
  const std::optional<std::string> before_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> createNccl(
    c10::intrusive_ptr<c10d::Store> store, int rank, int worldSize, std::chrono::milliseconds timeout) {
#ifdef MOLT_CUDA
  TORCH_CHECK(computeDevice().is_cuda(), "NCCL needs a GPU");
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, worldSize, options);
#else
  TORCH_CHECK(false, "this build has no NCCL: libtorch was a CPU build, or no GPU was found when it was made");
#endif
}

c10::intrusive_ptr<c10d::Backend> joinVllm(
    c10::intrusive_ptr<c10d::Store> server, int worldSize, std::chrono::milliseconds timeout) {
  // c10d has no options for these. It reads them when the group is made and when its first collective connects it; the
  // last one once a process, of which this is the only group that asks for it.
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(timeout).count();
  // A transfer that fails throws where it is waited for; else a watchdog would end the process.
  const ScopedEnv wait("TORCH_NCCL_BLOCKING_WAIT", "1");
  // One id for all: in a group larger than this (128) c10d would wait for others', which vLLM does not send.
  const ScopedEnv ids("TORCH_NCCL_RANKS_PER_ROOT", std::to_string(worldSize));
  // NCCL by itself waits for missing engines for ever.
  const ScopedEnv join("TORCH_NCCL_USE_COMM_NONBLOCKING", "1");
  const ScopedEnv deadline("TORCH_NCCL_NONBLOCKING_TIMEOUT", std::to_string(seconds));
  auto group = createNccl(c10::make_intrusive<VllmStore>(std::move(server)), 0, worldSize, timeout);
  // Engines warm up with it and would take it for weights otherwise.
  std::vector<at::Tensor> one{at::zeros({1}, onDevice(at::kFloat))};
  group->allreduce(one)->wait();
  return group;
}

std::shared_ptr<void> serveUniqueId(uint16_t port, const std::vector<uint8_t>& uniqueId) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listenAt("127.0.0.1", port);
  auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  publishUniqueId(*server, uniqueId);
  return std::make_shared<c10::intrusive_ptr<c10d::TCPStore>>(std::move(server));
}

}  // namespace molt

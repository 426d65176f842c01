#include "core/process_group.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_like.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "core/device.h"
#include "core/error.h"
#include "core/nccl.h"
#include "core/timeline.h"

namespace molt {

namespace {

/// This machine's address on the way to `host`: what peers that reach `host` can reach too. Connecting a datagram
/// socket sends nothing; it only picks the route. (c10d's default looks up the machine's own name instead, which
/// often is not resolvable.)
std::string addressTowards(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  TORCH_CHECK(getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0, "cannot resolve the host '",
              host, "' of the process group's store");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(found, &freeaddrinfo);
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    const int socketFd = socket(candidate->ai_family, SOCK_DGRAM, 0);
    if (socketFd < 0) continue;
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    auto* address = reinterpret_cast<sockaddr*>(&local);
    const bool routed = connect(socketFd, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
                        getsockname(socketFd, address, &size) == 0;
    ::close(socketFd);
    char text[NI_MAXHOST];
    if (routed && getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) return text;
  }
  TORCH_CHECK(false, "no network route to ", host, ":", port);
}

c10::intrusive_ptr<c10d::TCPStore> openStore(const ProcessGroupOptions& options) {
  c10d::TCPStoreOptions storeOptions;
  storeOptions.port = options.port;
  storeOptions.isServer = options.serveStore;
  storeOptions.waitWorkers = false;
  storeOptions.timeout = options.timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(options.host, storeOptions);
  store->setTimeout(options.timeout);
  return store;
}

std::string backendOf(const ProcessGroupOptions& options) {
  if (options.backend.empty()) return computeDevice().is_cuda() ? "nccl" : "gloo";
  return options.backend;
}

c10::intrusive_ptr<c10d::Backend> createBackend(const ProcessGroupOptions& options) {
  const auto& [host, port, rank, worldSize, prefix, serveStore, timeout, asked] = options;
  const std::string backend = backendOf(options);
  if (backend == "vllm") return joinVllm(openStore(options), worldSize, timeout);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, openStore(options));
  if (backend == "nccl") return createNccl(store, rank, worldSize, timeout);
  auto gloo = c10d::ProcessGroupGloo::Options::create(timeout);
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(addressTowards(host, port)));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, worldSize, gloo);
}

}  // namespace

ProcessGroup::ProcessGroup(const ProcessGroupOptions& options)
    : rank_(options.rank),
      worldSize_(options.worldSize),
      device_(backendOf(options) == "gloo" ? at::Device(at::kCPU) : computeDevice()),
      name_(c10::str("group '", options.prefix, "' (rank ", options.rank, " of ", options.worldSize, ")")) {
  try {
    backend_ = createBackend(options);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, name_, " did not form at ", options.host, ":", options.port, ": ", messageOf(error));
  }
}

ProcessGroup::~ProcessGroup() = default;

c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(backend_, name_, " is closed");
  return backend_;
}

std::function<void()> ProcessGroup::started(
    const char* what, int64_t bytes, c10::intrusive_ptr<c10d::Work> work) {
  // On a GPU its end is not the CPU's to know.
  const auto note = device_.is_cpu() ? Timeline::ofProcess().begin(what, bytes) : nullptr;
  if (note) work->getFuture()->addCallback([note](c10::ivalue::Future&) { note(&Collective::end); });
  return [this, what, note, work = std::move(work)] {
    if (note) note(&Collective::waitStart);
    try {
      work->wait();
    } catch (const std::exception& error) {
      TORCH_CHECK(false, "the ", what, " of ", name_, " failed: ", messageOf(error));
    }
    if (note) note(&Collective::waitEnd);
  };
}

void ProcessGroup::allReduce(at::Tensor data, Reduce op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op == Reduce::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
  std::vector<at::Tensor> tensors{data.to(device_)};
  started("all-reduce", data.nbytes(), backend()->allreduce(tensors, options))();
  if (!tensors[0].is_same(data)) data.copy_(tensors[0]);
}

std::function<void()> ProcessGroup::startBroadcast(at::Tensor data, int root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{std::move(data)};
  return started("broadcast", tensors[0].nbytes(), backend()->broadcast(tensors, options));
}

void ProcessGroup::allGather(at::Tensor whole, at::Tensor shard) {
  startAllGather(std::move(whole), std::move(shard))();
}

std::function<void()> ProcessGroup::startAllGather(at::Tensor whole, at::Tensor shard) {
  return started("all-gather", whole.nbytes(), backend()->_allgather_base(whole, shard));
}

void ProcessGroup::allToAll(
    at::Tensor received, at::Tensor sent, std::vector<int64_t> receivedCounts, std::vector<int64_t> sentCounts) {
  started("all-to-all", sent.nbytes(), backend()->alltoall_base(received, sent, receivedCounts, sentCounts))();
}

std::function<at::Tensor()> ProcessGroup::startReduceScatter(at::Tensor whole) {
  constexpr auto name = "reduce-scatter";
  if (device_.is_cpu()) {
    // Gloo's own is an all-reduce: twice as many bytes.
    std::vector<int64_t> equal;
    auto parts = at::empty_like(whole);
    const auto wait = started(name, whole.nbytes(), backend()->alltoall_base(parts, whole, equal, equal));
    return [parts, whole, wait, ranks = worldSize_] {
      wait();
      return parts.unflatten(0, {ranks, -1}).sum(0);
    };
  }
  auto shard = at::empty_like(whole.chunk(worldSize_)[0]);
  const auto wait = started(name, whole.nbytes(), backend()->_reduce_scatter_base(shard, whole));
  return [shard, whole, wait] {
    wait();
    return shard;
  };
}

void ProcessGroup::startSum(at::Tensor sum, at::Tensor whole) {
  finishSum();
  addSum_ = [sum, shard = startReduceScatter(std::move(whole))] { sum.add_(shard()); };
}

void ProcessGroup::finishSum() {
  if (const auto add = std::exchange(addSum_, nullptr)) add();
}

void ProcessGroup::barrier() { started("barrier", 0, backend()->barrier())(); }

void ProcessGroup::close() {
  c10::intrusive_ptr<c10d::Backend> last;
  std::lock_guard lock(mutex_);
  last.swap(backend_);
}

}  // namespace molt

#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace molt {

/// c10d's group over NCCL, for tensors on the GPU; its collectives run on a stream of their own. Throws where the build
/// has no NCCL.
c10::intrusive_ptr<c10d::Backend> createNccl(
    c10::intrusive_ptr<c10d::Store> store, int rank, int worldSize, std::chrono::milliseconds timeout);

/// The group that vLLM's engines form for weights, joined as rank 0. `server`: the TCPStore they are told of, where
/// their `StatelessProcessGroup` finds NCCL's unique id as the pickle of vLLM's class. Written for 0.27 to 0.32.
c10::intrusive_ptr<c10d::Backend> joinVllm(
    c10::intrusive_ptr<c10d::Store> server, int worldSize, std::chrono::milliseconds timeout);

/// That part of it alone which needs no GPU: a TCPStore that gives `uniqueId`, 128 bytes, until it is released.
std::shared_ptr<void> serveUniqueId(uint16_t port, const std::vector<uint8_t>& uniqueId);

}  // namespace molt

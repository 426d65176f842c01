#include "core/network.h"

#include <c10/util/Exception.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace molt {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, uint16_t port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  TORCH_CHECK(getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0, "cannot resolve the host '",
              host, "' of the process group's store");
  return {found, &freeaddrinfo};
}

}  // namespace

/// Connecting a datagram socket sends nothing; it only picks the route. (c10d's default looks up the machine's own name
/// instead, which often is not resolvable.)
std::string addressTowards(const std::string& host, uint16_t port) {
  const auto found = resolve(host, port, SOCK_DGRAM);
  for (const addrinfo* candidate = found.get(); candidate != nullptr; candidate = candidate->ai_next) {
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

int listenAt(const std::string& host, uint16_t port) {
  const auto found = resolve(host, port, SOCK_STREAM);
  int error = 0;
  for (const addrinfo* candidate = found.get(); candidate != nullptr; candidate = candidate->ai_next) {
    const int socketFd = socket(candidate->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    // A store that has just closed there leaves connections behind.
    if (socketFd >= 0 && setsockopt(socketFd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(socketFd, candidate->ai_addr, candidate->ai_addrlen) == 0 && listen(socketFd, SOMAXCONN) == 0)
      return socketFd;
    error = errno;
    if (socketFd >= 0) ::close(socketFd);
  }
  TORCH_CHECK(false, "cannot listen at ", host, ":", port, ": ", std::strerror(error));
}

}  // namespace molt

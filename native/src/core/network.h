#pragma once

#include <cstdint>
#include <string>

namespace molt {

/// This machine's address on the way to `host`: what peers that reach `host` can reach too. Throws where none leads
/// there.
std::string addressTowards(const std::string& host, uint16_t port);

/// A TCP socket that listens at `host`, an address or name of this machine, and nowhere else. It is the caller's to
/// close. Throws where that fails.
int listenAt(const std::string& host, uint16_t port);

}  // namespace molt

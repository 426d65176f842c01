#pragma once
#include <c10/util/Exception.h>

#include <string>

namespace molt {

/// The message of any C++ error, without the stack that libtorch appends to its own.
inline std::string messageOf(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours == nullptr ? error.what() : ours->what_without_backtrace();
}

}  // namespace molt

#include "core/timeline.h"

#include <chrono>
#include <utility>

namespace molt {
namespace {

double now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since).count();
}

}  // namespace

Timeline& Timeline::ofProcess() {
  static Timeline timeline;
  return timeline;
}

std::vector<Collective> Timeline::record(bool on) {
  std::lock_guard lock(mutex_);
  on_ = on;
  ++recording_;
  return std::exchange(collectives_, {});
}

std::function<void(double Collective::*)> Timeline::begin(std::string name, int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (!on_) return nullptr;
  collectives_.push_back({.name = std::move(name), .bytes = bytes, .start = now()});
  return [this, recording = recording_, index = collectives_.size() - 1](double Collective::* moment) {
    std::lock_guard lock(mutex_);
    if (recording == recording_) collectives_[index].*moment = now();
  };
}

}  // namespace molt

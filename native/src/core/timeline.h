#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace molt {

/// One collective of this process. Times are milliseconds since the epoch; 0 where it has not come to that.
struct Collective {
  std::string name;
  int64_t bytes = 0;
  double start = 0, end = 0;
  /// While the native thread could do nothing but wait for it.
  double waitStart = 0, waitEnd = 0;
};

/// When collectives begin, end and are waited for, so that it can be seen what of them computing hides. Records nothing
/// until asked to; its methods are called from any thread.
class Timeline {
 public:
  static Timeline& ofProcess();

  /// Starts over, or ends; returns what was recorded until then.
  std::vector<Collective> record(bool on);
  /// What notes a moment in the one that begins now; null where nothing is recorded.
  std::function<void(double Collective::* moment)> begin(std::string name, int64_t bytes);

 private:
  std::mutex mutex_;
  bool on_ = false;
  int64_t recording_ = 0;  // what belongs to an earlier one is dropped
  std::vector<Collective> collectives_;
};

}  // namespace molt

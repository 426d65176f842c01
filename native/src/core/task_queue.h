#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace molt {

/// The process's one native thread and its first-in, first-out queue. All work on models, samplers and collectives
/// runs here, so nothing of it runs concurrently; grad mode and thread counts are this thread's own.
class TaskQueue {
 public:
  static TaskQueue& instance();
  void submit(std::function<void()> task);
  /// Drops what has not begun and waits, at most a few seconds, for what has.
  void drain();

 private:
  TaskQueue();
  [[noreturn]] void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;
};

}  // namespace molt

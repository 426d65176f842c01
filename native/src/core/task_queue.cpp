#include "core/task_queue.h"

#include <chrono>
#include <thread>

namespace molt {

namespace {
constexpr std::chrono::seconds kDrainDeadline{2};
}

TaskQueue& TaskQueue::instance() {
  // Never destroyed: the thread may outlive static destructors.
  static auto* queue = new TaskQueue();
  return *queue;
}

TaskQueue::TaskQueue() {
  std::thread([this] { run(); }).detach();
}

void TaskQueue::submit(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void TaskQueue::drain() {
  std::unique_lock lock(mutex_);
  tasks_.clear();
  changed_.wait_for(lock, kDrainDeadline, [this] { return !running_; });
}

void TaskQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace molt

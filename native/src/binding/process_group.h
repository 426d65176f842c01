#pragma once
#include <memory>

#include "binding/addon.h"
#include "core/process_group.h"

namespace molt::binding {

/// `ProcessGroup` of index.d.ts.
class ProcessGroupWrap final : public Napi::ObjectWrap<ProcessGroupWrap> {
 public:
  /// The group in `value`, null where `value` is null or undefined; throws where it is anything else.
  static std::shared_ptr<ProcessGroup> of(Napi::Value value);

  explicit ProcessGroupWrap(const Napi::CallbackInfo& info);

 private:
  friend void initProcessGroup(Napi::Env env, Napi::Object exports);

  Napi::Value Rank(const Napi::CallbackInfo& info);
  Napi::Value WorldSize(const Napi::CallbackInfo& info);
  Napi::Value AllReduce(const Napi::CallbackInfo& info);
  Napi::Value Barrier(const Napi::CallbackInfo& info);
  void Close(const Napi::CallbackInfo& info);

  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace molt::binding

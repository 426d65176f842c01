// The addon's start, and the calls that belong to no class.
#include "binding/addon.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <torch/csrc/api/include/torch/version.h>

#include <cstdlib>

#include "binding/async.h"
#include "core/device.h"
#include "core/memory.h"

namespace molt::binding {

namespace {

void settleOperation(napi_env env, napi_value, void*, void* data) {
  std::unique_ptr<Operation> operation(static_cast<Operation*>(data));
  if (env == nullptr) return;
  Addon& addon = Addon::of(env);
  if (--addon.pending == 0) napi_unref_threadsafe_function(env, addon.completions);
  operation->settle(env);
}

void openCompletions(Napi::Env env, Addon& addon) {
  napi_value name = Napi::String::New(env, "molt-native");
  napi_status status = napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, nullptr,
                                                       settleOperation, &addon.completions);
  NAPI_THROW_IF_FAILED_VOID(env, status);
  napi_unref_threadsafe_function(env, addon.completions);
}

Napi::Value setThreads(const Napi::CallbackInfo& info) {
  const int count = info[0].As<Napi::Number>().Int32Value();
  return queue(info.Env(), [count] { at::set_num_threads(count); });
}

Napi::Value memory(const Napi::CallbackInfo& info) {
  const MemoryUse use = memoryUse(info[0].ToBoolean());
  auto result = Napi::Object::New(info.Env());
  result.Set("current", static_cast<double>(use.current));
  result.Set("peak", static_cast<double>(use.peak));
  return result;
}

Napi::Value versions(const Napi::CallbackInfo& info) {
  auto result = Napi::Object::New(info.Env());
  result.Set("torch", TORCH_VERSION);
  result.Set("cuda", guarded(info.Env(), [] { return computeDevice().is_cuda(); }));
  return result;
}

/// c10d logs what it also throws, with stacks: the errors say it. libtorch's own variable brings the log back.
void quietLog() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

Napi::Object initAddon(Napi::Env env, Napi::Object exports) {
  countMemory();
  quietLog();
  auto* addon = new Addon();
  env.SetInstanceData(addon);
  openCompletions(env, *addon);
  env.AddCleanupHook([] { TaskQueue::instance().drain(); });
  exports.Set("setThreads", Napi::Function::New(env, setThreads));
  exports.Set("memory", Napi::Function::New(env, memory));
  exports.Set("versions", Napi::Function::New(env, versions));
  for (const auto init : {initTensor, initModel, initProcessGroup, initSampler}) init(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(molt_native, initAddon)

}  // namespace molt::binding

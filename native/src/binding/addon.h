#pragma once
#include <napi.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace molt::binding {

class TensorWrap;

/// What one JavaScript environment (main thread or worker) holds. Classes keep their constructors in `constructors`.
struct Addon {
  std::unordered_map<std::string, Napi::FunctionReference> constructors;
  /// Tensors made in each open `scope`, innermost last.
  std::vector<std::shared_ptr<std::unordered_set<TensorWrap*>>> scopes;
  napi_threadsafe_function completions = nullptr;
  /// Operations not yet settled; while there are some, they keep the event loop alive.
  int pending = 0;

  static Addon& of(Napi::Env env) { return *env.GetInstanceData<Addon>(); }
  /// Exports a class and remembers its constructor.
  void define(Napi::Object exports, const char* name, Napi::Function constructor) {
    constructors[name] = Napi::Persistent(constructor);
    exports.Set(name, constructor);
  }
  static bool is(Napi::Value value, const char* name) {
    return value.IsObject() && value.As<Napi::Object>().InstanceOf(of(value.Env()).constructors[name].Value());
  }
};

// Each exports what its file binds.
void initTensor(Napi::Env env, Napi::Object exports);
void initModel(Napi::Env env, Napi::Object exports);
void initProcessGroup(Napi::Env env, Napi::Object exports);
void initSampler(Napi::Env env, Napi::Object exports);

}  // namespace molt::binding

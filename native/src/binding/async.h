#pragma once
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "binding/addon.h"
#include "core/error.h"
#include "core/task_queue.h"

namespace molt::binding {

/// Runs `body`, which uses libtorch, on the JavaScript thread: what it throws becomes an Error with the C++ message.
template <typename Body>
auto guarded(Napi::Env env, Body body) {
  try {
    return body();
  } catch (const Napi::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Napi::Error::New(env, messageOf(error));
  }
}

/// One promise under way: `run` on the native thread, then `settle` on the JavaScript thread that asked.
class Operation {
 public:
  explicit Operation(Napi::Env env) : deferred_(Napi::Promise::Deferred::New(env)) {}
  virtual ~Operation() = default;
  Napi::Promise promise() const { return deferred_.Promise(); }
  void run();
  void settle(Napi::Env env);

 protected:
  virtual void work() = 0;
  virtual Napi::Value convert(Napi::Env env) = 0;

 private:
  Napi::Promise::Deferred deferred_;
  std::optional<std::string> error_;
};

/// Queues `operation`, which it owns from here on.
Napi::Promise submit(Napi::Env env, Operation* operation);

template <typename Work, typename Convert>
class LambdaOperation final : public Operation {
  using Result = std::invoke_result_t<Work&>;
  static constexpr bool kVoid = std::is_void_v<Result>;

 public:
  LambdaOperation(Napi::Env env, Work work, Convert convert)
      : Operation(env), work_(std::move(work)), convert_(std::move(convert)) {}

 private:
  void work() override {
    // What the work holds is freed with it, not when JavaScript gets round to the result.
    std::optional<Work> work = std::exchange(work_, std::nullopt);
    if constexpr (kVoid) {
      (*work)();
    } else {
      result_.emplace((*work)());
    }
  }
  Napi::Value convert(Napi::Env env) override {
    if constexpr (kVoid) {
      return convert_(env);
    } else {
      return convert_(env, std::move(*result_));
    }
  }

  std::optional<Work> work_;
  Convert convert_;
  std::optional<std::conditional_t<kVoid, bool, Result>> result_;
};

/// Runs `work` on the native thread and resolves with `convert(env, result)`, called on the JavaScript thread; what
/// `work` throws rejects the promise with an Error of the same message. `work` must own what it uses: copies of
/// arrays, at::Tensors, a shared_ptr to the core object, and nothing of Napi. A bound method looks like this:
///
///   Napi::Value ModelWrap::Norm(const Napi::CallbackInfo& info) {
///     return queue(info.Env(), [model = model_] { return model->gradientNorm(); },
///                  [](Napi::Env env, double norm) -> Napi::Value { return Napi::Number::New(env, norm); });
///   }
template <typename Work, typename Convert>
Napi::Promise queue(Napi::Env env, Work work, Convert convert) {
  return submit(env, new LambdaOperation<Work, Convert>(env, std::move(work), std::move(convert)));
}

/// For the `create` of a class: makes the core object on the native thread and wraps it; the constructor unwraps it.
template <typename Work>
Napi::Promise queueObject(Napi::Env env, const char* name, Work make) {
  return queue(env, std::move(make), [name](Napi::Env env, auto object) -> Napi::Value {
    return Addon::of(env).constructors[name].New({Napi::External<decltype(object)>::New(env, &object)});
  });
}

template <typename T>
std::shared_ptr<T> unwrap(const Napi::CallbackInfo& info, const char* name) {
  if (info[0].IsExternal()) return *info[0].As<Napi::External<std::shared_ptr<T>>>().Data();
  throw Napi::TypeError::New(info.Env(), std::string("make one with ") + name + ".create");
}

/// The same for work without a result.
template <typename Work>
Napi::Promise queue(Napi::Env env, Work work) {
  return queue(env, std::move(work), [](Napi::Env env) -> Napi::Value { return env.Undefined(); });
}

}  // namespace molt::binding

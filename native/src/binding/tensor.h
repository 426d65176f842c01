#pragma once
#include <ATen/core/Tensor.h>

#include "binding/addon.h"

namespace molt::binding {

/// A Float32Array of a float32 tensor's values.
Napi::Value floats(Napi::Env env, const at::Tensor& values);

/// `Tensor` of index.d.ts.
class TensorWrap final : public Napi::ObjectWrap<TensorWrap> {
 public:
  /// A new JavaScript object around `tensor`.
  static Napi::Object make(Napi::Env env, at::Tensor tensor);
  /// The tensor in `value`; throws where it is none, or was disposed.
  static const at::Tensor& of(Napi::Value value);

  explicit TensorWrap(const Napi::CallbackInfo& info);
  ~TensorWrap() override;
  void release(Napi::Env env);

 private:
  using Scope = std::unordered_set<TensorWrap*>;
  friend void initTensor(Napi::Env env, Napi::Object exports);
  friend class ScopeFrame;

  const at::Tensor& tensor() const;
  template <at::Tensor (*op)(const at::Tensor&, const Napi::CallbackInfo&)>
  Napi::Value Apply(const Napi::CallbackInfo& info);
  Napi::Value Shape(const Napi::CallbackInfo& info);
  Napi::Value RequiresGrad(const Napi::CallbackInfo& info);
  Napi::Value Data(const Napi::CallbackInfo& info);
  void Dispose(const Napi::CallbackInfo& info);
  void enter(const std::shared_ptr<Scope>& scope);

  at::Tensor tensor_;
  /// What V8 was told.
  int64_t bytes_ = 0;
  std::weak_ptr<Scope> scope_;
};

}  // namespace molt::binding

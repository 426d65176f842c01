#include "binding/tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include "binding/async.h"
#include "core/device.h"

namespace molt::binding {

namespace {

at::Tensor operand(Napi::Value value) {
  if (value.IsNumber()) return at::scalar_tensor(value.As<Napi::Number>().DoubleValue());
  return TensorWrap::of(value);
}

std::optional<at::Scalar> bound(Napi::Value value) {
  if (!value.IsNumber()) return std::nullopt;
  return value.As<Napi::Number>().DoubleValue();
}

using Info = const Napi::CallbackInfo&;
using In = const at::Tensor&;

at::Tensor add(In a, Info info) { return a.add(operand(info[0])); }
at::Tensor sub(In a, Info info) { return a.sub(operand(info[0])); }
at::Tensor mul(In a, Info info) { return a.mul(operand(info[0])); }
at::Tensor div(In a, Info info) { return a.div(operand(info[0])); }
at::Tensor neg(In a, Info) { return a.neg(); }
at::Tensor exp(In a, Info) { return a.exp(); }
at::Tensor log(In a, Info) { return a.log(); }
at::Tensor clamp(In a, Info info) { return a.clamp(bound(info[0]), bound(info[1])); }
at::Tensor minimum(In a, Info info) { return at::minimum(a, TensorWrap::of(info[0])); }
at::Tensor maximum(In a, Info info) { return at::maximum(a, TensorWrap::of(info[0])); }
at::Tensor lt(In a, Info info) { return a.lt(operand(info[0])); }
at::Tensor gt(In a, Info info) { return a.gt(operand(info[0])); }
at::Tensor where(In a, Info info) { return at::where(TensorWrap::of(info[0]), a, operand(info[1])); }
at::Tensor sum(In a, Info) { return a.sum(at::kFloat); }
at::Tensor detach(In a, Info) { return a.detach(); }

Napi::Value from(Info info) {
  if (!info[0].IsTypedArray() || info[0].As<Napi::TypedArray>().TypedArrayType() != napi_float32_array)
    throw Napi::TypeError::New(info.Env(), "Tensor.from takes a Float32Array");
  const auto data = info[0].As<Napi::Float32Array>();
  std::vector<int64_t> shape{static_cast<int64_t>(data.ElementLength())};
  if (info[1].IsArray()) {
    const auto sizes = info[1].As<Napi::Array>();
    shape.clear();
    for (uint32_t i = 0; i < sizes.Length(); ++i)
      shape.push_back(sizes.Get(i).As<Napi::Number>().Int64Value());
  }
  return guarded(info.Env(), [&] {
    auto tensor = at::empty({static_cast<int64_t>(data.ElementLength())}, at::kFloat);
    std::copy_n(data.Data(), data.ElementLength(), tensor.mutable_data_ptr<float>());
    return TensorWrap::make(info.Env(), tensor.reshape(shape).to(computeDevice()));
  });
}

}  // namespace

Napi::Value floats(Napi::Env env, const at::Tensor& values) {
  const auto contiguous = values.cpu().contiguous();
  auto result = Napi::Float32Array::New(env, contiguous.numel());
  std::copy_n(contiguous.const_data_ptr<float>(), contiguous.numel(), result.Data());
  return result;
}

Napi::Object TensorWrap::make(Napi::Env env, at::Tensor tensor) {
  return Addon::of(env).constructors["Tensor"].New({Napi::External<at::Tensor>::New(env, &tensor)});
}

const at::Tensor& TensorWrap::of(Napi::Value value) {
  if (!Addon::is(value, "Tensor")) throw Napi::TypeError::New(value.Env(), "a Tensor was expected");
  return Unwrap(value.As<Napi::Object>())->tensor();
}

TensorWrap::TensorWrap(Info info) : Napi::ObjectWrap<TensorWrap>(info) {
  if (!info[0].IsExternal()) throw Napi::TypeError::New(info.Env(), "make tensors with Tensor.from");
  tensor_ = std::move(*info[0].As<Napi::External<at::Tensor>>().Data());
  bytes_ = static_cast<int64_t>(tensor_.nbytes());
  Napi::MemoryManagement::AdjustExternalMemory(info.Env(), bytes_);
  const auto& scopes = Addon::of(info.Env()).scopes;
  if (!scopes.empty()) enter(scopes.back());
}

TensorWrap::~TensorWrap() { release(Env()); }

void TensorWrap::enter(const std::shared_ptr<Scope>& scope) {
  scope->insert(this);
  scope_ = scope;
}

void TensorWrap::release(Napi::Env env) {
  tensor_ = at::Tensor();
  if (bytes_ > 0) Napi::MemoryManagement::AdjustExternalMemory(env, -std::exchange(bytes_, 0));
  if (const auto scope = scope_.lock()) scope->erase(this);
  scope_.reset();
}

const at::Tensor& TensorWrap::tensor() const {
  if (!tensor_.defined()) throw Napi::Error::New(Env(), "this tensor was disposed");
  return tensor_;
}

template <at::Tensor (*op)(const at::Tensor&, const Napi::CallbackInfo&)>
Napi::Value TensorWrap::Apply(Info info) {
  return guarded(info.Env(), [&] { return make(info.Env(), op(tensor(), info)); });
}

Napi::Value TensorWrap::Shape(Info info) {
  const auto sizes = tensor().sizes();
  auto shape = Napi::Array::New(info.Env(), sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) shape.Set(i, Napi::Number::New(info.Env(), sizes[i]));
  return shape;
}

Napi::Value TensorWrap::RequiresGrad(Info info) { return Napi::Boolean::New(info.Env(), tensor().requires_grad()); }

Napi::Value TensorWrap::Data(Info info) {
  const auto read = [tensor = tensor()] { return tensor.detach().to(at::kFloat); };
  return queue(info.Env(), read, floats);
}

void TensorWrap::Dispose(Info info) { release(info.Env()); }

/// One open `scope`. What it holds at its end is freed; what `keep` found moves to the scope around it.
class ScopeFrame {
 public:
  explicit ScopeFrame(Addon& addon) : addon_(addon), tensors_(std::make_shared<TensorWrap::Scope>()) {
    addon_.scopes.push_back(tensors_);
  }
  ~ScopeFrame() {
    addon_.scopes.pop_back();
    for (TensorWrap* tensor : std::exchange(*tensors_, {})) tensor->release(tensor->Env());
  }
  void keep(Napi::Value value, int depth = 0) {
    if (!value.IsObject() || depth > kMaxDepth) return;
    const auto object = value.As<Napi::Object>();
    if (Addon::is(value, "Tensor")) return keepTensor(TensorWrap::Unwrap(object));
    const Napi::Array names = object.GetPropertyNames();
    for (uint32_t i = 0; !value.IsTypedArray() && i < names.Length(); ++i) keep(object.Get(names.Get(i)), depth + 1);
  }

 private:
  static constexpr int kMaxDepth = 4;

  void keepTensor(TensorWrap* tensor) {
    if (tensors_->erase(tensor) == 0) return;
    tensor->scope_.reset();
    if (addon_.scopes.size() > 1) tensor->enter(addon_.scopes[addon_.scopes.size() - 2]);
  }

  Addon& addon_;
  std::shared_ptr<TensorWrap::Scope> tensors_;
};

namespace {

Napi::Value scope(Info info) {
  ScopeFrame frame(Addon::of(info.Env()));
  const Napi::Value result = info[0].As<Napi::Function>().Call({});
  if (result.IsPromise()) throw Napi::TypeError::New(info.Env(), "the body of a scope must not be asynchronous");
  frame.keep(result);
  return result;
}

}  // namespace

void initTensor(Napi::Env env, Napi::Object exports) {
  using T = TensorWrap;
  const auto constructor = T::DefineClass(
      env, "Tensor",
      {T::StaticMethod("from", from), T::InstanceAccessor<&T::Shape>("shape"),
       T::InstanceAccessor<&T::RequiresGrad>("requiresGrad"), T::InstanceMethod<&T::Apply<add>>("add"),
       T::InstanceMethod<&T::Apply<sub>>("sub"), T::InstanceMethod<&T::Apply<mul>>("mul"),
       T::InstanceMethod<&T::Apply<div>>("div"), T::InstanceMethod<&T::Apply<neg>>("neg"),
       T::InstanceMethod<&T::Apply<exp>>("exp"), T::InstanceMethod<&T::Apply<log>>("log"),
       T::InstanceMethod<&T::Apply<clamp>>("clamp"), T::InstanceMethod<&T::Apply<minimum>>("minimum"),
       T::InstanceMethod<&T::Apply<maximum>>("maximum"), T::InstanceMethod<&T::Apply<lt>>("lt"),
       T::InstanceMethod<&T::Apply<gt>>("gt"), T::InstanceMethod<&T::Apply<where>>("where"),
       T::InstanceMethod<&T::Apply<sum>>("sum"), T::InstanceMethod<&T::Apply<detach>>("detach"),
       T::InstanceMethod<&T::Data>("data"), T::InstanceMethod<&T::Dispose>("dispose")});
  Addon::of(env).define(exports, "Tensor", constructor);
  exports.Set("scope", Napi::Function::New(env, scope));
}

}  // namespace molt::binding

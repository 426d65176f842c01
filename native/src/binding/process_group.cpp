#include "binding/process_group.h"

#include <ATen/ops/empty.h>

#include "binding/async.h"
#include "core/nccl.h"
#include "core/timeline.h"

namespace molt::binding {

namespace {

using Info = const Napi::CallbackInfo&;

ProcessGroupOptions readOptions(Napi::Object object) {
  const auto number = [&](const char* name) { return object.Get(name).As<Napi::Number>().Int64Value(); };
  ProcessGroupOptions options{
      .host = object.Get("host").As<Napi::String>(),
      .port = static_cast<uint16_t>(number("port")),
      .rank = static_cast<int>(number("rank")),
      .worldSize = static_cast<int>(number("worldSize")),
      .prefix = object.Get("prefix").As<Napi::String>(),
      .serveStore = object.Get("serveStore").As<Napi::Boolean>(),
      .timeout = std::chrono::milliseconds(number("timeoutMs")),
      .backend = object.Get("backend").IsString() ? object.Get("backend").ToString().Utf8Value() : "",
  };
  if (options.rank < 0 || options.rank >= options.worldSize)
    throw Napi::RangeError::New(object.Env(), "rank must lie in [0, worldSize)");
  return options;
}

Napi::Value create(Info info) {
  const auto meet = [options = readOptions(info[0].As<Napi::Object>())] {
    return std::make_shared<ProcessGroup>(options);
  };
  return queueObject(info.Env(), "ProcessGroup", meet);
}

Napi::Value serve(Info info) {
  const auto id = info[1].As<Napi::Uint8Array>();
  const auto port = static_cast<uint16_t>(info[0].As<Napi::Number>().Uint32Value());
  auto server = guarded(info.Env(), [&] { return serveUniqueId(port, {id.Data(), id.Data() + id.ElementLength()}); });
  return Napi::Function::New(info.Env(), [server](Info) mutable { server.reset(); });
}

Napi::Value recordCollectives(Info info) {
  const auto collectives = Timeline::ofProcess().record(info[0].As<Napi::Boolean>());
  auto array = Napi::Array::New(info.Env(), collectives.size());
  for (size_t i = 0; i < collectives.size(); ++i) {
    const auto& collective = collectives[i];
    auto object = Napi::Object::New(info.Env());
    object.Set("name", collective.name);
    object.Set("bytes", static_cast<double>(collective.bytes));
    object.Set("start", collective.start);
    object.Set("end", collective.end);
    object.Set("waitStart", collective.waitStart);
    object.Set("waitEnd", collective.waitEnd);
    array.Set(i, object);
  }
  return array;
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroupWrap::of(Napi::Value value) {
  if (value.IsNull() || value.IsUndefined()) return nullptr;
  if (!Addon::is(value, "ProcessGroup")) throw Napi::TypeError::New(value.Env(), "a ProcessGroup was expected");
  return Unwrap(value.As<Napi::Object>())->group_;
}

ProcessGroupWrap::ProcessGroupWrap(Info info)
    : Napi::ObjectWrap<ProcessGroupWrap>(info), group_(unwrap<ProcessGroup>(info, "ProcessGroup")) {}

Napi::Value ProcessGroupWrap::Rank(Info info) { return Napi::Number::New(info.Env(), group_->rank()); }

Napi::Value ProcessGroupWrap::WorldSize(Info info) { return Napi::Number::New(info.Env(), group_->worldSize()); }

Napi::Value ProcessGroupWrap::AllReduce(Info info) {
  const auto array = info[0].As<Napi::Float64Array>();
  const Reduce op = info[1].As<Napi::String>().Utf8Value() == "max" ? Reduce::kMax : Reduce::kSum;
  auto data = at::empty({static_cast<int64_t>(array.ElementLength())}, at::kDouble);
  std::copy_n(array.Data(), array.ElementLength(), data.mutable_data_ptr<double>());
  const auto reduce = [group = group_, data, op] {
    group->allReduce(data, op);
    return data;
  };
  return queue(info.Env(), reduce, [](Napi::Env env, at::Tensor reduced) -> Napi::Value {
    auto result = Napi::Float64Array::New(env, reduced.numel());
    std::copy_n(reduced.const_data_ptr<double>(), reduced.numel(), result.Data());
    return result;
  });
}

Napi::Value ProcessGroupWrap::Barrier(Info info) {
  return queue(info.Env(), [group = group_] { group->barrier(); });
}

void ProcessGroupWrap::Close(Info) { group_->close(); }

void initProcessGroup(Napi::Env env, Napi::Object exports) {
  using G = ProcessGroupWrap;
  const auto constructor = G::DefineClass(
      env, "ProcessGroup",
      {G::StaticMethod("create", create), G::InstanceAccessor<&G::Rank>("rank"),
       G::InstanceAccessor<&G::WorldSize>("worldSize"), G::InstanceMethod<&G::AllReduce>("allReduce"),
       G::InstanceMethod<&G::Barrier>("barrier"), G::InstanceMethod<&G::Close>("close")});
  Addon::of(env).define(exports, "ProcessGroup", constructor);
  exports.Set("recordCollectives", Napi::Function::New(env, recordCollectives));
  exports.Set("serveUniqueId", Napi::Function::New(env, serve));
}

}  // namespace molt::binding

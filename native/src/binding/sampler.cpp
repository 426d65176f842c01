#include "core/sampler.h"

#include <algorithm>
#include <memory>

#include "binding/addon.h"
#include "binding/async.h"
#include "binding/description.h"
#include "binding/process_group.h"

namespace molt::binding {

namespace {

using Info = const Napi::CallbackInfo&;

SamplerBatch readBatch(const Napi::Object& object) {
  SamplerBatch batch{
      arrayOf<int32_t>(object, "sequences"), arrayOf<int32_t>(object, "cu"), arrayOf<int32_t>(object, "tokens"), {},
      {}};
  const auto temperatures = arrayOf<float>(object, "temperatures"), topP = arrayOf<float>(object, "topP");
  const auto topK = arrayOf<int32_t>(object, "topK");
  const auto uniforms = arrayOf<double>(object, "uniforms");
  const size_t count = batch.sequences.size();
  const auto lengths = {temperatures.size(), topP.size(), topK.size(), uniforms.size()};
  if (std::ranges::any_of(lengths, [&](size_t length) { return length != count; }))
    throw Napi::RangeError::New(object.Env(), "a step needs one value of each setting for each sequence");
  for (size_t i = 0; i < count; ++i) batch.draws.push_back({temperatures[i], topP[i], topK[i], uniforms[i]});
  batch.score.resize(count);
  if (!object.Get("promptLogprobs").IsUndefined()) batch.score = arrayOf<uint8_t>(object, "promptLogprobs");
  return batch;
}

Napi::Value resultToObject(Napi::Env env, const SamplerResult& result) {
  const size_t count = result.choices.size();
  auto tokens = Napi::Int32Array::New(env, count);
  auto logprobs = Napi::Float32Array::New(env, count);
  auto promptLogprobs = Napi::Array::New(env, count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = result.choices[i].token;
    logprobs[i] = result.choices[i].logprob;
    const auto& scores = result.newLogprobs[i];
    auto values = Napi::Float32Array::New(env, scores.size());
    std::ranges::copy(scores, values.Data());
    promptLogprobs.Set(i, scores.empty() ? env.Null() : Napi::Value(values));
  }
  auto object = Napi::Object::New(env);
  object.Set("tokens", tokens);
  object.Set("logprobs", logprobs);
  object.Set("promptLogprobs", promptLogprobs);
  if (!result.routes.empty()) {
    auto routes = Napi::Array::New(env, count);
    for (size_t i = 0; i < count; ++i) {
      auto ids = Napi::Int16Array::New(env, result.routes[i].size());
      std::ranges::copy(result.routes[i], ids.Data());
      routes.Set(i, ids);
    }
    object.Set("routes", routes);
  }
  return object;
}

Napi::Value create(Info info) {
  const auto object = info[0].As<Napi::Object>();
  const SamplerOptions options{
      .config = toConfig(object.Get("config").As<Napi::Object>()),
      .units = toUnits(object.Get("units").As<Napi::Array>()),
      .pageSize = object.Get("pageSize").ToNumber().Int64Value(),
      .numPages = object.Get("numPages").ToNumber().Int64Value(),
      .dtype = toDtype(object.Get("dtype")),
      .plain = object.Get("plain").ToBoolean().Value(),
      .routes = object.Get("routes").ToBoolean().Value(),
  };
  return queueObject(info.Env(), "Sampler", [options] { return std::make_shared<Sampler>(options); });
}

/// `Sampler` of index.d.ts.
class SamplerWrap final : public Napi::ObjectWrap<SamplerWrap> {
 public:
  explicit SamplerWrap(Info info)
      : Napi::ObjectWrap<SamplerWrap>(info), sampler_(unwrap<Sampler>(info, "Sampler")) {}

  Napi::Value Load(Info info) {
    return queue(info.Env(), [sampler = live(info), tensors = toLocations(info[0].As<Napi::Array>())] {
      sampler->load(tensors);
    });
  }

  Napi::Value Receive(Info info) {
    const auto array = info[1].As<Napi::Array>();
    std::vector<std::string> names;
    for (uint32_t i = 0; i < array.Length(); ++i) names.push_back(array.Get(i).ToString());
    auto transfer = ProcessGroupWrap::of(info[0]);
    if (!transfer) throw Napi::TypeError::New(info.Env(), "receive needs a transfer group");
    return queue(info.Env(), [sampler = live(info), transfer, names] { sampler->receive(*transfer, names); });
  }

  Napi::Value Checksum(Info info) {
    return queue(info.Env(), [sampler = live(info)] { return sampler->checksum(); },
                 [](Napi::Env env, const std::string& sum) -> Napi::Value { return Napi::String::New(env, sum); });
  }

  Napi::Value Step(Info info) {
    return queue(info.Env(), [sampler = live(info), batch = readBatch(info[0].As<Napi::Object>())] {
      return sampler->step(batch);
    }, resultToObject);
  }

  void Fork(Info info) {
    const auto integer = [&](size_t index) { return info[index].As<Napi::Number>().Int64Value(); };
    guarded(info.Env(), [&] { live(info)->cache().fork(integer(0), integer(1), integer(2)); });
  }

  void Free(Info info) { live(info)->cache().free(info[0].As<Napi::Number>().Int32Value()); }

  Napi::Value FreePages(Info info) {
    return Napi::Number::New(info.Env(), static_cast<double>(live(info)->cache().freePages()));
  }

  void Dispose(Info) { sampler_.reset(); }

 private:
  const std::shared_ptr<Sampler>& live(Info info) const {
    if (!sampler_) throw Napi::Error::New(info.Env(), "this sampler was disposed");
    return sampler_;
  }

  std::shared_ptr<Sampler> sampler_;
};

}  // namespace

void initSampler(Napi::Env env, Napi::Object exports) {
  using S = SamplerWrap;
  const auto constructor = S::DefineClass(
      env, "Sampler",
      {S::StaticMethod("create", create), S::InstanceMethod<&S::Load>("load"),
       S::InstanceMethod<&S::Receive>("receive"), S::InstanceMethod<&S::Checksum>("checksum"),
       S::InstanceMethod<&S::Step>("step"), S::InstanceMethod<&S::Fork>("fork"), S::InstanceMethod<&S::Free>("free"),
       S::InstanceMethod<&S::FreePages>("freePages"), S::InstanceMethod<&S::Dispose>("dispose")});
  Addon::of(env).define(exports, "Sampler", constructor);
}

}  // namespace molt::binding

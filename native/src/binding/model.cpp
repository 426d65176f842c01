// `Model` and `AdamW` of index.d.ts.
#include "core/model.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "binding/addon.h"
#include "binding/async.h"
#include "binding/description.h"
#include "binding/process_group.h"
#include "binding/tensor.h"
#include "core/adamw.h"
#include "core/transfer.h"

namespace molt::binding {

namespace {

using Info = const Napi::CallbackInfo&;

PackedRows readRows(Napi::Object object) {
  return {
      .tokens = arrayOf<int32_t>(object, "tokens"),
      .cu = arrayOf<int32_t>(object, "cu"),
      .targets = arrayOf<int32_t>(object, "targets"),
      .temperatures = arrayOf<float>(object, "temperatures"),
      .routes = optionalArrayOf<int16_t>(object, "routes"),
      .balance = optionalArrayOf<float>(object, "balance"),
  };
}

std::vector<uint8_t> readBytes(Napi::Value value) {
  const auto array = value.As<Napi::Uint8Array>();
  return {array.Data(), array.Data() + array.ElementLength()};
}

Napi::Value string(Napi::Env env, std::string text) { return Napi::String::New(env, text); }

std::string textOf(Napi::Value value) { return value.ToString(); }

double numberOf(Napi::Value value) { return value.As<Napi::Number>(); }

ModelOptions readOptions(Napi::Object object) {
  const auto chunk = object.Get("headChunk"), reshard = object.Get("reshardAfterForward");
  const auto checkpoint = textOf(object.Get("gradientCheckpoint"));
  const auto group = [&](const char* name) { return ProcessGroupWrap::of(object.Get(name)); };
  return {
      .group = group("group"),
      .contextGroup = group("contextGroup"),
      .expertGroup = group("expertGroup"),
      .expertDataGroup = group("expertDataGroup"),
      .trainable = object.Get("trainable").ToBoolean(),
      .dtype = toDtype(object.Get("dtype")),
      .headChunk = chunk.IsNumber() ? chunk.As<Napi::Number>().Int64Value() : 1024,
      .checkpoint = checkpoint == "none"        ? Checkpoint::none
                    : checkpoint == "selective" ? Checkpoint::selective
                                                : Checkpoint::full,
      .reshardAfterForward = reshard.IsUndefined() || reshard.ToBoolean(),
      .deferReduce = object.Get("deferReduce").ToBoolean(),
      .freezeRouter = object.Get("freezeRouter").ToBoolean(),
  };
}

class ModelWrap final : public Napi::ObjectWrap<ModelWrap> {
 public:
  explicit ModelWrap(Info info) : Napi::ObjectWrap<ModelWrap>(info), model_(unwrap<Model>(info, "Model")) {}

  static std::shared_ptr<Model> of(Napi::Value value) {
    if (!Addon::is(value, "Model")) throw Napi::TypeError::New(value.Env(), "a Model was expected");
    return Unwrap(value.As<Napi::Object>())->model();
  }

  static Napi::Value Create(Info info) {
    const auto options = info[0].As<Napi::Object>();
    const auto create = [config = toConfig(options.Get("config").As<Napi::Object>()),
                         units = toUnits(options.Get("units").As<Napi::Array>()), read = readOptions(options)] {
      return std::make_shared<Model>(config, units, read);
    };
    return queueObject(info.Env(), "Model", create);
  }

  Napi::Value Initialize(Info info) {
    const auto seed = static_cast<uint64_t>(info[0].As<Napi::Number>().Int64Value());
    const bool adaptersOnly = info[1].IsString();
    return queue(info.Env(), [model = model(), seed, adaptersOnly] { model->initialize(seed, adaptersOnly); });
  }

  Napi::Value Base(Info info) {
    return queueObject(info.Env(), "Model", [model = model()] { return model->base(); });
  }

  Napi::Value Load(Info info) {
    return queue(info.Env(), [model = model(), tensors = toLocations(info[0].As<Napi::Array>())] {
      model->load(tensors);
    });
  }

  Napi::Value Forward(Info info) {
    const auto forward = [model = model(), rows = readRows(info[0].As<Napi::Object>()),
                          grad = info[1].ToBoolean().Value()] { return model->forward(rows, grad); };
    return queue(info.Env(), forward, [](Napi::Env env, Model::Scores scores) -> Napi::Value {
      auto result = Napi::Object::New(env);
      result.Set("logp", TensorWrap::make(env, std::move(scores.logp)));
      result.Set("entropy", TensorWrap::make(env, std::move(scores.entropy)));
      const auto& [balance, differing, compared] = scores.routes;
      result.Set("balance", balance);
      auto mismatch = Napi::Object::New(env);
      mismatch.Set("differing", static_cast<double>(differing));
      mismatch.Set("compared", static_cast<double>(compared));
      result.Set("routeMismatch", mismatch);
      return result;
    });
  }

  Napi::Value Values(Info info) {
    const auto values = [model = model(), rows = readRows(info[0].As<Napi::Object>()),
                         grad = info[1].ToBoolean().Value()] { return model->values(rows, grad); };
    return queue(info.Env(), values, [](Napi::Env env, at::Tensor tensor) -> Napi::Value {
      return TensorWrap::make(env, std::move(tensor));
    });
  }

  Napi::Value Backward(Info info) {
    return queue(info.Env(), [model = model(), loss = TensorWrap::of(info[0])] { model->backward(loss); });
  }

  Napi::Value ZeroGradients(Info info) {
    return queue(info.Env(), [model = model()] { model->zeroGradients(); });
  }

  Napi::Value GradientNorm(Info info) {
    return queue(info.Env(), [model = model()] { return model->gradientNorm(); },
                 [](Napi::Env env, double norm) -> Napi::Value { return Napi::Number::New(env, norm); });
  }

  Napi::Value NonFiniteGradients(Info info) {
    return queue(info.Env(), [model = model()] { return model->nonFiniteGradients(); },
                 [](Napi::Env env, std::vector<std::string> names) -> Napi::Value {
                   auto result = Napi::Array::New(env, names.size());
                   for (uint32_t i = 0; i < names.size(); ++i) result.Set(i, names[i]);
                   return result;
                 });
  }

  Napi::Value Read(Info info) {
    return queue(info.Env(), [model = model(), name = textOf(info[0])] { return model->read(name); }, floats);
  }

  Napi::Value ReadGradient(Info info) {
    return queue(info.Env(), [model = model(), name = textOf(info[0])] { return model->readGradient(name); }, floats);
  }

  Napi::Value WriteGradient(Info info) {
    const auto array = info[1].As<Napi::Float32Array>();
    auto value = at::empty({static_cast<int64_t>(array.ElementLength())}, at::kFloat);
    std::copy_n(array.Data(), array.ElementLength(), value.mutable_data_ptr<float>());
    return queue(info.Env(), [model = model(), name = textOf(info[0]), value] { model->writeGradient(name, value); });
  }

  Napi::Value Save(Info info) {
    const auto save = [model = model(), path = textOf(info[0]), header = readBytes(info[1]),
                       adaptersOnly = info[2].IsString()] { model->save(path, header, adaptersOnly); };
    return queue(info.Env(), save);
  }

  Napi::Value Broadcast(Info info) {
    const auto format = info[1].IsObject() ? info[1].As<Napi::Object>() : Napi::Object::New(info.Env());
    const auto bytes = format.Get("bucketBytes");
    const auto send = [model = model(), transfer = ProcessGroupWrap::of(info[0]), dtype = toDtype(format.Get("dtype")),
                       bucketBytes = bytes.IsNumber() ? bytes.As<Napi::Number>().Int64Value() : kBucketBytes] {
      return model->broadcast(transfer, dtype, bucketBytes);
    };
    return queue(info.Env(), send, string);
  }

  Napi::Value ComputeChecksum(Info info) {
    return queue(info.Env(), [model = model()] { return model->checksum(); }, string);
  }

  Napi::Value ShardSize(Info info) {
    return Napi::Number::New(info.Env(), static_cast<double>(model()->shardSize()));
  }

  void Dispose(Info) { model_ = nullptr; }

 private:
  /// Throws after `dispose`.
  const std::shared_ptr<Model>& model() const {
    if (!model_) throw Napi::Error::New(Env(), "the model was disposed");
    return model_;
  }

  std::shared_ptr<Model> model_;
};

class AdamWWrap final : public Napi::ObjectWrap<AdamWWrap> {
 public:
  explicit AdamWWrap(Info info) : Napi::ObjectWrap<AdamWWrap>(info) {
    const auto options = info[1].As<Napi::Object>();
    const auto number = [&](const char* name) { return numberOf(options.Get(name)); };
    optimizer_ = guarded(info.Env(), [&] {
      return std::make_shared<AdamW>(
          ModelWrap::of(info[0]),
          AdamWOptions{number("beta1"), number("beta2"), number("eps"), number("weightDecay")});
    });
  }

  Napi::Value StepCount(Info info) {
    return Napi::Number::New(info.Env(), static_cast<double>(optimizer_->stepCount));
  }

  void SetStepCount(Info, const Napi::Value& value) { optimizer_->stepCount = value.As<Napi::Number>().Int64Value(); }

  Napi::Value Step(Info info) {
    return queue(info.Env(), [optimizer = optimizer_, rate = numberOf(info[0]), scale = numberOf(info[1])] {
      optimizer->step(rate, scale);
    });
  }

  Napi::Value SaveShard(Info info) {
    return queue(info.Env(), [optimizer = optimizer_, path = textOf(info[0]), header = readBytes(info[1])] {
      optimizer->save(path, header);
    });
  }

  Napi::Value LoadShard(Info info) {
    const int64_t offset = info[1].As<Napi::Number>();
    return queue(
        info.Env(), [optimizer = optimizer_, path = textOf(info[0]), offset] { optimizer->load(path, offset); });
  }

 private:
  std::shared_ptr<AdamW> optimizer_;
};

}  // namespace

void initModel(Napi::Env env, Napi::Object exports) {
  using M = ModelWrap;
  const auto model = M::DefineClass(
      env, "Model",
      {M::StaticMethod<&M::Create>("create"), M::InstanceMethod<&M::Initialize>("initialize"),
       M::InstanceMethod<&M::Load>("load"), M::InstanceMethod<&M::Base>("base"),
       M::InstanceMethod<&M::Forward>("forward"), M::InstanceMethod<&M::Values>("values"),
       M::InstanceMethod<&M::Backward>("backward"), M::InstanceMethod<&M::ZeroGradients>("zeroGradients"),
       M::InstanceMethod<&M::GradientNorm>("gradientNorm"),
       M::InstanceMethod<&M::NonFiniteGradients>("nonFiniteGradients"), M::InstanceMethod<&M::Read>("read"),
       M::InstanceMethod<&M::ReadGradient>("readGradient"), M::InstanceMethod<&M::WriteGradient>("writeGradient"),
       M::InstanceMethod<&M::Save>("save"), M::InstanceMethod<&M::Broadcast>("broadcast"),
       M::InstanceMethod<&M::ComputeChecksum>("checksum"), M::InstanceAccessor<&M::ShardSize>("shardSize"),
       M::InstanceMethod<&M::Dispose>("dispose")});
  Addon::of(env).define(exports, "Model", model);
  using A = AdamWWrap;
  const auto adamw = A::DefineClass(
      env, "AdamW",
      {A::InstanceAccessor<&A::StepCount, &A::SetStepCount>("stepCount"), A::InstanceMethod<&A::Step>("step"),
       A::InstanceMethod<&A::SaveShard>("saveShard"), A::InstanceMethod<&A::LoadShard>("loadShard")});
  Addon::of(env).define(exports, "AdamW", adamw);
}

}  // namespace molt::binding

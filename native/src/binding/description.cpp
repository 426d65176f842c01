#include "binding/description.h"

#include <string>

namespace molt::binding {
namespace {

std::string text(const Napi::Object& object, const char* key) {
  return object.Get(key).ToString().Utf8Value();
}

int64_t integer(const Napi::Object& object, const char* key) {
  return object.Get(key).ToNumber().Int64Value();
}

double number(const Napi::Object& object, const char* key) {
  return object.Get(key).ToNumber().DoubleValue();
}

bool flag(const Napi::Object& object, const char* key) {
  return object.Get(key).ToBoolean().Value();
}

template <typename Item, typename Convert>
std::vector<Item> list(const Napi::Array& array, Convert convert) {
  std::vector<Item> items;
  items.reserve(array.Length());
  for (uint32_t i = 0; i < array.Length(); ++i) items.push_back(convert(array.Get(i)));
  return items;
}

template <typename Item>
std::vector<Item> numbers(const Napi::Object& object, const char* key) {
  return list<Item>(object.Get(key).As<Napi::Array>(), [](const Napi::Value& item) { return Item(item.ToNumber()); });
}

ParameterDescription parameter(const Napi::Value& value) {
  const auto object = value.As<Napi::Object>();
  const auto init = object.Get("init").As<Napi::Object>();
  const auto kind = text(init, "kind");
  return {
      .role = text(object, "role"),
      .name = text(object, "name"),
      .shape = numbers<int64_t>(object, "shape"),
      .initOnes = kind == "ones",
      .initStd = kind == "normal" ? number(init, "std") : 0,
      .initBound = kind == "uniform" ? number(init, "bound") : 0,
      .decay = flag(object, "decay"),
      .expert = object.Get("expert").IsNumber() ? integer(object, "expert") : -1,
  };
}

std::vector<ParameterDescription> parameters(const Napi::Object& object, const char* key = "parameters") {
  if (object.Get(key).IsUndefined()) return {};
  return list<ParameterDescription>(object.Get(key).As<Napi::Array>(), parameter);
}

std::optional<Adapters> adapters(const Napi::Value& value) {
  if (!value.IsObject()) return std::nullopt;
  const auto object = value.As<Napi::Object>();
  return Adapters{.scale = number(object, "scale"), .parameters = parameters(object)};
}

std::optional<MoeConfig> moe(const Napi::Value& value) {
  if (!value.IsObject()) return std::nullopt;
  const auto object = value.As<Napi::Object>();
  return MoeConfig{
      .numExperts = integer(object, "numExperts"),
      .expertsPerToken = integer(object, "expertsPerToken"),
      .expertIntermediateSize = integer(object, "expertIntermediateSize"),
      .normTopkProb = flag(object, "normTopkProb"),
      .layers = numbers<int64_t>(object, "layers"),
  };
}

UnitKind unitKind(const Napi::Object& unit) {
  const auto kind = text(unit, "kind");
  if (kind == "embedding") return UnitKind::embedding;
  if (kind == "layer") return UnitKind::layer;
  if (kind == "head") return UnitKind::head;
  throw Napi::TypeError::New(unit.Env(), "a unit is an embedding, a layer or a head, not '" + kind + "'");
}

at::ScalarType scalarType(const Napi::Object& tensor) {
  const auto dtype = text(tensor, "dtype");
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  throw Napi::TypeError::New(
      tensor.Env(), "tensor '" + text(tensor, "name") + "' is of type " + dtype + "; F32, BF16 and F16 are read");
}

}  // namespace

DecoderConfig toConfig(const Napi::Object& value) {
  return {
      .vocabSize = integer(value, "vocabSize"),
      .hiddenSize = integer(value, "hiddenSize"),
      .intermediateSize = integer(value, "intermediateSize"),
      .numLayers = integer(value, "numLayers"),
      .numHeads = integer(value, "numHeads"),
      .numKvHeads = integer(value, "numKvHeads"),
      .headDim = integer(value, "headDim"),
      .inverseFrequencies = numbers<double>(value, "inverseFrequencies"),
      .ropeScale = number(value, "ropeScale"),
      .windows = numbers<int64_t>(value, "windows"),
      .rmsNormEps = number(value, "rmsNormEps"),
      .tieWordEmbeddings = flag(value, "tieWordEmbeddings"),
      .qkNorm = flag(value, "qkNorm"),
      .moe = moe(value.Get("moe")),
  };
}

std::vector<UnitDescription> toUnits(const Napi::Array& value) {
  return list<UnitDescription>(value, [](const Napi::Value& item) {
    const auto object = item.As<Napi::Object>();
    return UnitDescription{
        .kind = unitKind(object),
        .parameters = parameters(object),
        .experts = parameters(object, "experts"),
        .adapters = adapters(object.Get("adapters")),
    };
  });
}

std::vector<TensorLocation> toLocations(const Napi::Array& value) {
  return list<TensorLocation>(value, [](const Napi::Value& item) {
    const auto object = item.As<Napi::Object>();
    return TensorLocation{
        .name = text(object, "name"),
        .file = text(object, "file"),
        .offset = integer(object, "offset"),
        .dtype = scalarType(object),
        .shape = numbers<int64_t>(object, "shape"),
    };
  });
}

at::ScalarType toDtype(const Napi::Value& value) {
  const std::string name = value.IsUndefined() ? "float32" : value.ToString().Utf8Value();
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  throw Napi::TypeError::New(value.Env(), "the compute dtype is float32 or bfloat16, not '" + name + "'");
}

}  // namespace molt::binding

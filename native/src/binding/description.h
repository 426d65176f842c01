#pragma once

#include <napi.h>

#include <vector>

#include "core/decoder.h"
#include "core/tensor_io.h"

// The plain descriptions of native/index.d.ts, copied out of JavaScript. Used by the model and the sampler.
namespace molt::binding {

DecoderConfig toConfig(const Napi::Object& value);
std::vector<UnitDescription> toUnits(const Napi::Array& value);
/// What a model or sampler computes in; float32 where undefined.
at::ScalarType toDtype(const Napi::Value& value);
std::vector<TensorLocation> toLocations(const Napi::Array& value);

/// A copy of the typed array under `key`; throws where there is none of that type.
template <typename Value>
std::vector<Value> arrayOf(const Napi::Object& object, const char* key) {
  const auto value = object.Get(key);
  using Array = Napi::TypedArrayOf<Value>;
  const auto wanted = Array::New(object.Env(), 0).TypedArrayType();
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != wanted)
    throw Napi::TypeError::New(object.Env(), std::string(key) + " is not a typed array of the declared kind");
  const auto array = value.As<Array>();
  return {array.Data(), array.Data() + array.ElementLength()};
}

/// Empty where there is nothing under `key`.
template <typename Value>
std::vector<Value> optionalArrayOf(const Napi::Object& object, const char* key) {
  return object.Get(key).IsUndefined() ? std::vector<Value>() : arrayOf<Value>(object, key);
}

}  // namespace molt::binding

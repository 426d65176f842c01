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

}  // namespace molt::binding

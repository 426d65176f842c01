#include "core/projection.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>

#include <optional>
#include <string_view>

namespace molt {

namespace {

/// Smaller matrices stay in the processor's cache, where packing gains less than oneDNN's calls cost.
constexpr int64_t kSmallest = 1 << 18;

template <typename Signature>
auto operatorNamed(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// bfloat16 needs instructions that not every processor has.
bool canPack(at::ScalarType dtype) {
  static const bool bfloat16 = operatorNamed<bool()>("mkldnn::_is_mkldnn_bf16_supported").call();
  return dtype == at::kFloat || bfloat16;
}

}  // namespace

Projection::Projection(at::Tensor weight, at::Tensor bias, bool plain)
    : weight_(std::move(weight)),
      bias_(std::move(bias)),
      packs_(!plain && weight_.is_cpu() && weight_.numel() >= kSmallest && canPack(weight_.scalar_type())) {}

void Projection::pack() {
  static const auto reorder =
      operatorNamed<at::Tensor(const at::Tensor&, std::optional<int64_t>)>("mkldnn::_reorder_linear_weight");
  if (packs_) packed_ = reorder.call(weight_, std::nullopt);
}

at::Tensor Projection::operator()(const at::Tensor& x) const {
  using Scalars = c10::List<std::optional<at::Scalar>>;
  using Linear = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view, Scalars,
      std::optional<std::string_view>);
  static const auto linear = operatorNamed<Linear>("mkldnn::_linear_pointwise");
  if (!packs_) return at::linear(x, weight_, bias_);
  return linear.call(x, packed_, bias_, "none", Scalars(), "");
}

}  // namespace molt

#include "core/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <mutex>
#include <vector>

#include "core/simd.h"

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kLanes = 16;
/// Rows a thread takes at least.
constexpr int64_t kGrain = 512;

/// Sum of a[i] * b[i] * c[i]; null c stands for ones.
inline __attribute__((always_inline)) float dot(const float* a, const float* b, const float* c, int64_t size) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane] * (c ? c[i + lane] : 1.0F);
  }
  float sum = 0;
  for (; i < size; ++i) sum += a[i] * b[i] * (c ? c[i] : 1.0F);
  for (const float lane : lanes) sum += lane;
  return sum;
}

// `__restrict`: without it the compiler picks a vectorised or a scalar loop by where the allocator put the arrays, the
// two round differently, and equal runs would part in their last bit.

/// y = x * inverse * weight with inverse = 1 / sqrt(mean(x²) + eps).
MOLT_SIMD void normForward(
    const float* __restrict x, const float* __restrict weight, float eps, int64_t rows, int64_t size,
    float* __restrict y, float* __restrict inverses) {
  for (int64_t row = 0; row < rows; ++row, x += size, y += size) {
    const float inverse = 1.0F / std::sqrt(dot(x, x, nullptr, size) / static_cast<float>(size) + eps);
    inverses[row] = inverse;
    for (int64_t i = 0; i < size; ++i) y[i] = x[i] * inverse * weight[i];
  }
}

/// dx = inverse * (weight * dy - x * inverse² * mean(dy * weight * x));  dweight += dy * x * inverse.
MOLT_SIMD void normBackward(
    const float* __restrict dy, const float* __restrict x, const float* __restrict weight,
    const float* __restrict inverses, int64_t rows, int64_t size,
    float* __restrict dx, float* __restrict dweight) {
  for (int64_t row = 0; row < rows; ++row, dy += size, x += size, dx += size) {
    const float inverse = inverses[row];
    const float pull = dot(dy, weight, x, size) * inverse * inverse / static_cast<float>(size);
    for (int64_t i = 0; i < size; ++i) {
      dx[i] = inverse * (weight[i] * dy[i] - x[i] * pull);
      dweight[i] += dy[i] * x[i] * inverse;
    }
  }
}

/// Turns each pair (x[i], x[i + half]) by the angle of its row; sign -1 turns back.
MOLT_SIMD void rotate(
    const float* __restrict x, const float* __restrict cos, const float* __restrict sin, float sign, int64_t rows,
    int64_t heads, int64_t half, float* __restrict y) {
  for (int64_t row = 0; row < rows; ++row, cos += 2 * half, sin += 2 * half) {
    for (int64_t head = 0; head < heads; ++head, x += 2 * half, y += 2 * half) {
      for (int64_t i = 0; i < half; ++i) {
        y[i] = x[i] * cos[i] - sign * sin[i] * x[i + half];
        y[i + half] = x[i + half] * cos[i] + sign * sin[i] * x[i];
      }
    }
  }
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, double eps) {
    const auto x = input.contiguous();
    const int64_t size = x.size(-1);
    const int64_t rows = x.numel() / size;
    auto y = at::empty_like(x);
    auto inverses = at::empty({rows}, x.options());
    const float* from = x.const_data_ptr<float>();
    const float* scale = weight.const_data_ptr<float>();
    float* to = y.mutable_data_ptr<float>();
    float* inverse = inverses.mutable_data_ptr<float>();
    at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
      const int64_t skip = begin * size;
      normForward(from + skip, scale, static_cast<float>(eps), end - begin, size, to + skip, inverse + begin);
    });
    context->save_for_backward({x, weight, inverses});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto dy = gradients[0].contiguous();
    const int64_t size = dy.size(-1);
    auto dx = at::empty_like(dy);
    auto dweight = at::zeros_like(saved[1]);
    const float* dyData = dy.const_data_ptr<float>();
    const float* x = saved[0].const_data_ptr<float>();
    const float* weight = saved[1].const_data_ptr<float>();
    const float* inverse = saved[2].const_data_ptr<float>();
    float* dxData = dx.mutable_data_ptr<float>();
    float* sum = dweight.mutable_data_ptr<float>();
    std::mutex mutex;
    at::parallel_for(0, dy.numel() / size, kGrain, [&](int64_t begin, int64_t end) {
      std::vector<float> part(size);
      const int64_t skip = begin * size;
      normBackward(
          dyData + skip, x + skip, weight, inverse + begin, end - begin, size, dxData + skip, part.data());
      const std::lock_guard lock(mutex);
      for (int64_t i = 0; i < size; ++i) sum[i] += part[i];
    });
    return {dx, dweight, at::Tensor()};
  }
};

at::Tensor rotated(const at::Tensor& input, const at::Tensor& cos, const at::Tensor& sin, float sign) {
  const auto x = input.contiguous();
  auto y = at::empty_like(x);
  const int64_t width = x.size(1) * x.size(2);
  const int64_t angles = x.size(2);
  const float* from = x.const_data_ptr<float>();
  const float* c = cos.const_data_ptr<float>();
  const float* s = sin.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0), kGrain, [&](int64_t begin, int64_t end) {
    rotate(
        from + begin * width, c + begin * angles, s + begin * angles, sign, end - begin, x.size(1), angles / 2,
        to + begin * width);
  });
  return y;
}

class Rotate : public torch::autograd::Function<Rotate> {
 public:
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return rotated(x, cos, sin, 1);
  }

  /// A rotation's transpose turns back.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {rotated(gradients[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor fusedRmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

at::Tensor fusedRotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return Rotate::apply(x, cos, sin);
}

}  // namespace molt

#include "core/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/sampling.h"
#include "core/simd.h"

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kLanes = 16;
/// Values that are worth a thread.
constexpr int64_t kWork = 1 << 18;

MOLT_SIMD void widen(const at::BFloat16* from, int64_t count, float* to) {
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
}

/// Rounds to nearest, ties to even.
MOLT_SIMD void narrow(const float* from, int64_t count, at::BFloat16* to) {
  auto* bits = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    const auto exact = std::bit_cast<uint32_t>(from[i]);
    const uint32_t rounded = (exact + 0x7fffU + ((exact >> 16) & 1)) >> 16;
    bits[i] = static_cast<uint16_t>(from[i] == from[i] ? rounded : 0x7fc0U);
  }
}

/// A float32 or bfloat16 matrix whose rows the loops below take as float32; bfloat16 passes through a buffer.
struct Rows {
  explicit Rows(const at::Tensor& matrix)
      : data(matrix.data_ptr()),
        bf16(matrix.scalar_type() == at::kBFloat16),
        size(matrix.size(1)),
        stride(matrix.stride(0)) {}

  float* exact(int64_t row) const { return static_cast<float*>(data) + row * stride; }
  at::BFloat16* rounded(int64_t row) const { return static_cast<at::BFloat16*>(data) + row * stride; }

  void* data;
  bool bf16;
  int64_t size, stride;
};

/// Calls body(row, in, out) for each row of matrices that have as many, with pointers to that row of each. A matrix may
/// be in both lists.
template <size_t In, size_t Out, typename Body>
void forEachRow(const Rows (&from)[In], const Rows (&to)[Out], int64_t rows, Body body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kWork / from[0].size), [&](int64_t begin, int64_t end) {
    std::vector<float> buffers[In + Out];
    float *in[In], *out[Out];
    for (size_t i = 0; i < In; ++i) buffers[i].resize(from[i].bf16 ? from[i].size : 0);
    for (size_t i = 0; i < Out; ++i) buffers[In + i].resize(to[i].bf16 ? to[i].size : 0);
    for (int64_t row = begin; row < end; ++row) {
      for (size_t i = 0; i < In; ++i) {
        in[i] = from[i].bf16 ? buffers[i].data() : from[i].exact(row);
        if (from[i].bf16) widen(from[i].rounded(row), from[i].size, in[i]);
      }
      for (size_t i = 0; i < Out; ++i) out[i] = to[i].bf16 ? buffers[In + i].data() : to[i].exact(row);
      body(row, in, out);
      for (size_t i = 0; i < Out; ++i) {
        if (to[i].bf16) narrow(out[i], to[i].size, to[i].rounded(row));
      }
    }
  });
}

/// Sum of term(i) for i < size.
template <typename Term>
inline __attribute__((always_inline)) float sumOf(int64_t size, Term term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  float sum = 0;
  for (; i < size; ++i) sum += term(i);
  for (const float lane : lanes) sum += lane;
  return sum;
}

// `__restrict`: without it the compiler picks a vectorised or a scalar loop by where the allocator put the arrays, the
// two round differently, and equal runs would part in their last bit.

/// y = x * inverse * weight; returns inverse = 1 / sqrt(mean(x²) + eps).
MOLT_SIMD float normForward(
    const float* __restrict x, const float* __restrict weight, float eps, int64_t size, float* __restrict y) {
  const float squares = sumOf(size, [=](int64_t i) { return x[i] * x[i]; });
  const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(size) + eps);
  for (int64_t i = 0; i < size; ++i) y[i] = x[i] * inverse * weight[i];
  return inverse;
}

/// dx = inverse * (weight * dy - x * inverse² * mean(dy * weight * x));  dweight += dy * x * inverse.
MOLT_SIMD void normBackward(
    const float* __restrict dy, const float* __restrict x, const float* __restrict weight, float inverse, int64_t size,
    float* __restrict dx, float* __restrict dweight) {
  const float along = sumOf(size, [=](int64_t i) { return dy[i] * weight[i] * x[i]; });
  const float pull = along * inverse * inverse / static_cast<float>(size);
  for (int64_t i = 0; i < size; ++i) {
    dx[i] = inverse * (weight[i] * dy[i] - x[i] * pull);
    dweight[i] += dy[i] * x[i] * inverse;
  }
}

/// Turns each pair (x[i], x[i + half]) of each head by the row's angles; sign -1 turns back.
MOLT_SIMD void rotate(
    const float* __restrict x, const float* __restrict cos, const float* __restrict sin, float sign, int64_t heads,
    int64_t half, float* __restrict y) {
  for (int64_t head = 0; head < heads; ++head, x += 2 * half, y += 2 * half) {
    for (int64_t i = 0; i < half; ++i) {
      y[i] = x[i] * cos[i] - sign * sin[i] * x[i + half];
      y[i + half] = x[i + half] * cos[i] + sign * sin[i] * x[i];
    }
  }
}

/// y: d logp / dx = (onehot - p) / temperature;  d entropy / dx = -p (log p + entropy) / temperature.
MOLT_SIMD void scoreBackward(
    const float* x, int64_t size, float inverse, Spread spread, float dlogp, float dentropy, float* y) {
  const auto [max, logTotal, entropy] = spread;
  for (int64_t i = 0; i < size; ++i) {
    const float logp = (x[i] - max) * inverse - logTotal;
    y[i] = -inverse * expNegative(logp < 0 ? logp : 0) * (dlogp + dentropy * (logp + entropy));
  }
}

at::Tensor matrix(const at::Tensor& x) {
  return x.contiguous().view({-1, x.size(-1)});
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, double eps) {
    const auto x = matrix(input);
    const auto scale = weight.to(at::kFloat);
    const auto y = at::empty(x.sizes(), weight.options()), inverses = at::empty({x.size(0)}, scale.options());
    const float* w = scale.const_data_ptr<float>();
    float* inverse = inverses.mutable_data_ptr<float>();
    forEachRow({Rows(x)}, {Rows(y)}, x.size(0), [&](int64_t row, auto& in, auto& out) {
      inverse[row] = normForward(in[0], w, static_cast<float>(eps), x.size(1), out[0]);
    });
    context->save_for_backward({x, weight, inverses});
    return y.view(input.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const auto dy = matrix(gradients[0]), scale = weight.to(at::kFloat), dx = at::empty_like(x);
    const auto parts = at::zeros({at::get_num_threads(), x.size(1)}, scale.options());
    const float *w = scale.const_data_ptr<float>(), *inverse = saved[2].const_data_ptr<float>();
    float* part = parts.mutable_data_ptr<float>();
    forEachRow({Rows(dy), Rows(x)}, {Rows(dx)}, x.size(0), [&](int64_t row, auto& in, auto& out) {
      float* dweight = part + at::get_thread_num() * x.size(1);
      normBackward(in[0], in[1], w, inverse[row], x.size(1), out[0], dweight);
    });
    return {dx.view(gradients[0].sizes()), parts.sum(0).to(weight.scalar_type()), at::Tensor()};
  }
};

at::Tensor rotated(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin, float sign) {
  const int64_t heads = given.size(1), dim = given.size(2);
  const bool together = given.stride(2) == 1 && given.stride(1) == dim;
  const auto x = together ? given : given.contiguous();
  const auto y = at::empty(x.sizes(), x.options());
  const float *c = cos.const_data_ptr<float>(), *s = sin.const_data_ptr<float>();
  forEachRow({Rows(x.flatten(1))}, {Rows(y.flatten(1))}, x.size(0), [&](int64_t row, auto& in, auto& out) {
    rotate(in[0], c + row * dim, s + row * dim, sign, heads, dim / 2, out[0]);
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

class Scores : public torch::autograd::Function<Scores> {
 public:
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& logits, const at::Tensor& temperatures, const at::Tensor& targets) {
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    const auto spreads = at::empty({rows, 3}, at::kFloat), scores = at::empty({rows, 2}, at::kFloat);
    const float* temperature = temperatures.const_data_ptr<float>();
    const int64_t* target = targets.const_data_ptr<int64_t>();
    forEachRow({Rows(logits)}, {Rows(spreads), Rows(scores)}, rows, [&](int64_t row, auto& in, auto& out) {
      const Spread spread = spreadOf(in[0], vocab, 1 / temperature[row]);
      std::copy_n(&spread.max, 3, out[0]);
      out[1][0] = (in[0][target[row]] - spread.max) / temperature[row] - spread.logTotal;
      out[1][1] = spread.entropy;
    });
    context->save_for_backward({logits, temperatures, targets, spreads});
    return scores;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &logits = saved[0], &spreads = saved[3];
    const auto given = gradients[0].contiguous();
    const float* temperature = saved[1].const_data_ptr<float>();
    const int64_t* target = saved[2].const_data_ptr<int64_t>();
    const Rows values(logits);
    forEachRow({values, Rows(spreads), Rows(given)}, {values}, logits.size(0), [&](int64_t row, auto& in, auto& out) {
      const Spread spread{in[1][0], in[1][1], in[1][2]};
      scoreBackward(in[0], logits.size(1), 1 / temperature[row], spread, in[2][0], in[2][1], out[0]);
      out[0][target[row]] += in[2][0] / temperature[row];
    });
    return {logits.detach(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor fusedRmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

at::Tensor fusedRotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return Rotate::apply(x, cos, sin);
}

at::Tensor fusedScores(const at::Tensor& logits, const at::Tensor& temperatures, const at::Tensor& targets) {
  return Scores::apply(logits, temperatures, targets);
}

}  // namespace molt

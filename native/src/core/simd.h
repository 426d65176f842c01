#pragma once
#include <bit>
#include <cstdint>

/// The build knows no processor: functions marked so are compiled once for each, and the loader picks. They are plain
/// loops that compilers vectorise; sums keep lanes of their own, since float additions may not be reordered.
#if defined(__x86_64__) && defined(__linux__)
#define MOLT_SIMD __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define MOLT_SIMD
#endif

namespace molt {

/// Cephes' expf for x <= 0, to float32 precision; 0 below -87 and for NaN, which callers look for. Written so that
/// loops around it are vectorised.
inline __attribute__((always_inline)) float expNegative(float x) {
  const float bounded = x > -87.0f ? x : -87.0f;
  const int32_t n = static_cast<int32_t>(bounded * 1.44269504088896341f - 0.5f);
  const float whole = static_cast<float>(n);
  const float r = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = (p * r * r + r + 1.0f) * std::bit_cast<float>((n + 127) << 23);
  return value * static_cast<float>(x >= -87.0f);
}

}  // namespace molt

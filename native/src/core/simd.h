#pragma once

/// The build knows no processor: functions marked so are compiled once for each, and the loader picks. They are plain
/// loops that compilers vectorise; sums keep lanes of their own, since float additions may not be reordered.
#if defined(__x86_64__) && defined(__linux__)
#define MOLT_SIMD __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define MOLT_SIMD
#endif

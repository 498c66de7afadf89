// Vectors of float from float16 and back: to the nearest, of two the even one; what is beyond the range becomes its end.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels.h"
#include "simd.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace apportion {

typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
constexpr float kLargestHalf = 65504.0f;

// What is no number stays none.
inline Vector in_half_range(Vector v) {
  const Vector most = splat(kLargestHalf);
  return select(v > most, most, select(v < -most, -most, v));
}

#if defined(APPORTION_LIKE_ARM) && defined(__F16C__)
inline Vector widened(Halves h) {
  __m128i bits{};
  std::memcpy(&bits, &h, sizeof h);
  return reinterpret_cast<Vector>(_mm_cvtph_ps(bits));
}
inline Halves narrowed(Vector v) {
  const __m128i bits = _mm_cvtps_ph(reinterpret_cast<__m128>(in_half_range(v)), _MM_FROUND_TO_NEAREST_INT);
  Halves h;
  std::memcpy(&h, &bits, sizeof h);
  return h;
}
#elif defined(__AVX512F__)
inline Vector widened(Halves h) { return reinterpret_cast<Vector>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(h))); }
inline Halves narrowed(Vector v) {
  return reinterpret_cast<Halves>(_mm512_cvtps_ph(reinterpret_cast<__m512>(in_half_range(v)), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
inline Vector widened(Halves h) { return reinterpret_cast<Vector>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(h))); }
inline Halves narrowed(Vector v) {
  return reinterpret_cast<Halves>(_mm256_cvtps_ph(reinterpret_cast<__m256>(in_half_range(v)), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
inline Vector widened(Halves h) { return reinterpret_cast<Vector>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(h))); }
inline Halves narrowed(Vector v) {
  return reinterpret_cast<Halves>(vcvt_f16_f32(reinterpret_cast<float32x4_t>(in_half_range(v))));
}
#else
inline Vector widened(Halves h) {
  Vector v;
  for (int i = 0; i < VL; ++i) v[i] = (h[i] & 0x7c00) == 0x7c00 ? bits_of<float>(0x7fc00000u) : single(h[i]);
  return v;
}
inline Halves narrowed(Vector v) {
  v = in_half_range(v);
  Halves h;
  for (int i = 0; i < VL; ++i) h[i] = half(v[i]);
  return h;
}
#endif

// Floats read as what they lie in memory as: f(offset, count) of each gives a vector, of fewer the others 0.
struct Singles {
  const float* values;
  Vector operator()(int64_t at, int64_t n) const { return load_n(values + at, n); }
};
struct Kept {
  const uint16_t* values;
  Vector operator()(int64_t at, int64_t n) const {
    Halves h{};
    if (n == VL) {
      std::memcpy(&h, values + at, sizeof h);
    } else {
      std::memcpy(&h, values + at, static_cast<size_t>(n) * 2);
    }
    return widened(h);
  }
};

// f with argument i of a call, read as it lies.
template <class F>
inline void with_values(const Call& call, int i, const F& f) {
  if (call.is_half(i)) {
    f(Kept{call.halves(i)});
  } else {
    f(Singles{call.in(i)});
  }
}

}  // namespace apportion

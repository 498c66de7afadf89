// Vectors of float of the width this file is compiled for, by the compiler's own vector types: one source for x86-64 and
// aarch64. Legend: VL floats per vector.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if !defined(APPORTION_LIKE_ARM) && defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace apportion {

#if defined(APPORTION_LIKE_ARM)  // its tiles and vectors, to see its memory accesses on another processor
constexpr int kVectorBytes = 16;
#elif defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int VL = kVectorBytes / 4;

typedef float Vector __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
typedef float Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

inline Vector load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void store(float* p, Vector v) { *reinterpret_cast<Unaligned*>(p) = v; }
inline Vector splat(float v) { return v - Vector{}; }

// The first n lanes; the others are 0 (load) or untouched (store). Narrow layers, of fewer channels than a vector has lanes,
// do little else.
#if !defined(APPORTION_LIKE_ARM) && defined(__AVX512F__)
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline Vector load_part(const float* p, int64_t n) { return reinterpret_cast<Vector>(_mm512_maskz_loadu_ps(first_lanes(n), p)); }
inline void store_part(float* p, Vector v, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), reinterpret_cast<__m512>(v));
}
#elif !defined(APPORTION_LIKE_ARM) && defined(__AVX__)
inline __m256i first_lanes(int64_t n) {
  static constexpr int32_t kMasks[2 * VL] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + VL - n));
}
inline Vector load_part(const float* p, int64_t n) { return reinterpret_cast<Vector>(_mm256_maskload_ps(p, first_lanes(n))); }
inline void store_part(float* p, Vector v, int64_t n) {
  _mm256_maskstore_ps(p, first_lanes(n), reinterpret_cast<__m256>(v));
}
#else
inline Vector load_part(const float* p, int64_t n) {
  static_assert(VL == 4);
  Vector v{};
  switch (n) {  // sizes that are known are copied in place
    case 1: std::memcpy(&v, p, 4); break;
    case 2: std::memcpy(&v, p, 8); break;
    case 3: std::memcpy(&v, p, 12); break;
    case 4: v = load(p); break;
  }
  return v;
}
inline void store_part(float* p, Vector v, int64_t n) {
  switch (n) {
    case 1: std::memcpy(p, &v, 4); break;
    case 2: std::memcpy(p, &v, 8); break;
    case 3: std::memcpy(p, &v, 12); break;
    case 4: store(p, v); break;
  }
}
#endif

// a b + c, rounded once where the processor can do that. Of a b + c d a compiler rounds one product, now this, now that one:
// where two loops, or two processors, are to give the same bits, it has to be said which.
inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__aarch64__)
  return reinterpret_cast<Vector>(
      vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
#elif defined(APPORTION_LIKE_ARM) || !defined(__FMA__)
  return a * b + c;
#elif defined(__AVX512F__)
  return reinterpret_cast<Vector>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#else
  return reinterpret_cast<Vector>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#endif
}

inline float sum(Vector v) {
  float s = 0;
  for (int i = 0; i < VL; ++i) s += v[i];
  return s;
}

inline Vector select(IntVector mask, Vector a, Vector b) {
  return reinterpret_cast<Vector>((mask & reinterpret_cast<IntVector>(a)) | (~mask & reinterpret_cast<IntVector>(b)));
}
inline Vector maximum(Vector a, Vector b) { return select(a > b, a, b); }
inline Vector minimum(Vector a, Vector b) { return select(a < b, a, b); }

// e^x, within 2 units in the last place on [-87, 88]; 0 below. Range reduction by ln 2 in two parts, degree 6.
inline Vector exponential(Vector x) {
  const IntVector underflow = x < splat(-87.3f);
  x = minimum(maximum(x, splat(-87.3f)), splat(88.3f));
  const Vector shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Vector n = (x * splat(1.44269504f) + shift) - shift;
  Vector r = x - n * splat(0.693359375f);
  r = r + n * splat(2.12194440e-4f);
  Vector p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  const IntVector exponent = (__builtin_convertvector(n, IntVector) + 127) << 23;
  return select(underflow, Vector{}, p * reinterpret_cast<Vector>(exponent));
}

inline Vector sigmoid(Vector x) { return splat(1.0f) / (splat(1.0f) + exponential(-x)); }

// tanh x: a polynomial near 0, where 1 - 2 / (1 + e^2x) loses digits.
inline Vector hyperbolic_tangent(Vector x) {
  const Vector size = select(x < Vector{}, -x, x);
  const Vector far = splat(1.0f) - splat(2.0f) / (exponential(minimum(size, splat(20.0f)) * 2.0f) + 1.0f);
  const Vector s = x * x;
  Vector p = splat(-5.70498872745e-3f);
  p = p * s + splat(2.06390887954e-2f);
  p = p * s + splat(-5.37397155531e-2f);
  p = p * s + splat(1.33314422036e-1f);
  p = p * s + splat(-3.33332819422e-1f);
  const Vector near = p * s * x + x;
  return select(size < splat(0.625f), near, select(x < Vector{}, -far, far));
}

// erf x within about 1 unit in the last place: a polynomial near 0, 1 - e^polynomial elsewhere.
inline Vector error_function(Vector x) {
  const Vector t = select(x < Vector{}, -x, x), s = x * x;
  Vector r = splat(-1.72853470e-5f) * t + splat(3.83197126e-4f);
  const Vector u = splat(-3.88396438e-3f) * t + splat(2.42546219e-2f);
  r = r * s + u;
  r = r * t + splat(-1.06777877e-1f);
  r = r * t + splat(-6.34846687e-1f);
  r = r * t + splat(-1.28717512e-1f);
  r = r * t - t;
  const Vector far = splat(1.0f) - exponential(r);
  Vector p = splat(-5.96761703e-4f);
  p = p * s + splat(4.99119423e-3f);
  p = p * s + splat(-2.67681349e-2f);
  p = p * s + splat(1.12819925e-1f);
  p = p * s + splat(-3.76125336e-1f);
  p = p * s + splat(1.28379166e-1f);
  const Vector near = p * x + x;
  return select(t > splat(0.927734375f), select(x < Vector{}, -far, far), near);
}

// Applies f to vectors of up to VL elements: f(offset, count).
template <class F>
inline void for_vectors(int64_t n, F f) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) f(i, static_cast<int64_t>(VL));
  if (i < n) f(i, n - i);
}
inline Vector load_n(const float* p, int64_t n) { return n == VL ? load(p) : load_part(p, n); }
inline void store_n(float* p, Vector v, int64_t n) {
  if (n == VL) {
    store(p, v);
  } else {
    store_part(p, v, n);
  }
}

}  // namespace apportion

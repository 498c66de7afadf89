#include "sparse_windows.h"

#include <algorithm>

#include "batch_last.h"

namespace apportion {
namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTile = 14;  // vectors of outputs in registers; 32 registers
#else
constexpr int kTile = 7;  // 16 registers
#endif

// kCount vectors of neighbouring outputs: pixels of a row, examples within.
template <class V, int kCount>
void outputs_of(const Tap* tap, const Tap* end, const float* x, float bias, float* y) {
  V sums[kCount];
#pragma GCC unroll 14
  for (int k = 0; k < kCount; ++k) sums[k] = V{} + bias;
  for (; tap < end; ++tap) {
    const float* from = x + tap->offset;
    const float value = tap->value;
#pragma GCC unroll 14
    for (int k = 0; k < kCount; ++k) sums[k] += value * load_as<V>(from + k * kWidth<V>);
  }
#pragma GCC unroll 14
  for (int k = 0; k < kCount; ++k) store_as(y + k * kWidth<V>, sums[k]);
}

// Sums of products of runs of `length` floats, a multiple of 8; lane l of 16 holds what is at l, l + 16, ...
constexpr int kLanes = 16, kParts = kLanes / (VL > kLanes ? kLanes : VL);

#if defined(__AVX512F__)
constexpr int kTaps = 8;
#elif defined(__aarch64__)
constexpr int kTaps = 4;
#else
constexpr int kTaps = 4;
#endif

inline float folded(const Vector* parts) {
  float lane[kLanes];
  std::memcpy(lane, parts, sizeof lane);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

template <int kCount>
void gradients_of(const Tap* taps, const Planes& x, const float* dy, int64_t height, int64_t length, float* dw, bool accumulate) {
  Vector sums[kCount][kParts] = {};
  for (int64_t h = 0; h < height; ++h) {
    const float* right = dy + h * length;
    const float* left = x.data + h * x.row();
    int64_t i = 0;
    for (; i + kLanes <= length; i += kLanes)
      for (int p = 0; p < kParts; ++p) {
        const Vector factor = load(right + i + p * VL);
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t) sums[t][p] += factor * load(left + taps[t].offset + i + p * VL);
      }
    if (i < length)
      for (int p = 0; p < (kParts > 1 ? kParts / 2 : 1); ++p) {
        const int64_t count = std::min<int64_t>(VL, 8);
        const Vector factor = load_part(right + i + p * VL, count);
        for (int t = 0; t < kCount; ++t) sums[t][p] += factor * load_part(left + taps[t].offset + i + p * VL, count);
      }
  }
  for (int t = 0; t < kCount; ++t) dw[t] = accumulate ? dw[t] + folded(sums[t]) : folded(sums[t]);
}

}  // namespace

void sum_of_taps(const Tap* taps, const int32_t* starts, int64_t outputs, const Planes& x, const float* bias, int64_t height,
                 int64_t width, float* y) {
  const int64_t length = width * x.lanes;
  for (int64_t h = 0; h < height; ++h) {
    const float* row = x.data + h * x.row();
    for (int64_t o = 0; o < outputs; ++o) {
      const Tap *first = taps + starts[o], *end = taps + starts[o + 1];
      float* to = y + (o * height + h) * length;
      const float start = bias ? bias[o] : 0.0f;
      int64_t i = 0;
      for (; i + kTile * VL <= length; i += kTile * VL) outputs_of<Vector, kTile>(first, end, row + i, start, to + i);
      for (; i + 4 * VL <= length; i += 4 * VL) outputs_of<Vector, 4>(first, end, row + i, start, to + i);
      for (; i + VL <= length; i += VL) outputs_of<Vector, 1>(first, end, row + i, start, to + i);
      if (i < length) outputs_of<Narrow, 1>(first, end, row + i, start, to + i);
    }
  }
}

void gradient_of_taps(const Tap* taps, const int32_t* starts, int64_t outputs, const Planes& x, const float* dy, int64_t height,
                      int64_t width, float* dw, bool accumulate) {
  const int64_t length = width * x.lanes;
  for (int64_t o = 0; o < outputs; ++o) {
    const float* right = dy + o * height * length;
    int64_t i = starts[o];
    const int64_t end = starts[o + 1];
    for (; i + kTaps <= end; i += kTaps) gradients_of<kTaps>(taps + i, x, right, height, length, dw + i, accumulate);
    for (; i < end; ++i) gradients_of<1>(taps + i, x, right, height, length, dw + i, accumulate);
  }
}

}  // namespace apportion

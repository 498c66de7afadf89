// Sums along rows in eight lanes whatever a vector holds: the same bits on every processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace apportion {

constexpr int kRowLanes = 8;
typedef float RowLanes __attribute__((vector_size(kRowLanes * 4)));

inline RowLanes load_lanes(const float* x, int64_t n) {
  RowLanes part{};
  if (n >= kRowLanes) {
    std::memcpy(&part, x, sizeof part);
  } else {
    std::memcpy(&part, x, static_cast<size_t>(n) * 4);
  }
  return part;
}

inline float total(RowLanes sums) {
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

inline float row_sum(const float* x, int64_t n) {
  RowLanes sums{};
  for (int64_t i = 0; i < n; i += kRowLanes) sums += load_lanes(x + i, n - i);
  return total(sums);
}

inline float row_maximum(const float* x, int64_t n) {
  if (n < VL) {
    float top = x[0];
    for (int64_t i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
    return top;
  }
  Vector best = load(x);
  for (int64_t i = VL; i + VL <= n; i += VL) best = maximum(best, load(x + i));
  best = maximum(best, load(x + n - VL));
  float top = best[0];
  for (int i = 1; i < VL; ++i) top = best[i] > top ? best[i] : top;
  return top;
}

}  // namespace apportion

// Values with the examples of a batch as neighbours in memory, for kernels that do the same with every example: one weight
// then serves whole vectors. Lanes: examples rounded up to a multiple of 8, the surplus 0; results are the same bits
// whatever the width of a vector.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace apportion {

inline int64_t lanes_of(int64_t examples) { return (examples + 7) / 8 * 8; }

// Eight floats: half a vector where vectors are that wide.
typedef float Eight __attribute__((vector_size(32)));
typedef float UnalignedEight __attribute__((vector_size(32), aligned(4), may_alias));
using Narrow = std::conditional_t<(VL > 8), Eight, Vector>;
template <class V>
constexpr int kWidth = static_cast<int>(sizeof(V) / 4);

template <class V>
inline V load_as(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
inline void store_as(float* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// Calls f.operator()<V, count>(offset) until `lanes` (a multiple of 8) are covered, each call with count vectors V.
template <class F>
inline void for_lanes(int64_t lanes, F f) {
  int64_t n = 0;
  if constexpr (VL > 8)
    for (; n + 2 * VL <= lanes; n += 2 * VL) f.template operator()<Vector, 2>(n);
  for (; n + 16 <= lanes; n += 16) f.template operator()<Vector, (VL > 16 ? 1 : 16 / VL)>(n);
  if (n < lanes) f.template operator()<Narrow, 8 / kWidth<Narrow>>(n);
}

// to [columns, lanes] from x, whose rows of `columns` values are `stride` apart, one per example; and back.
void to_lanes(const float* x, int64_t examples, int64_t stride, int64_t columns, float* to, int64_t to_stride, int64_t lanes);
void from_lanes(const float* from, int64_t from_stride, int64_t examples, int64_t stride, int64_t columns, float* y);

}  // namespace apportion

// Softmax of one row, and its gradient. Rows may be written over.
#pragma once

#include "rows.h"
#include "simd.h"

namespace apportion {

// to = e^(x scale - max) / sum(e^(x scale - max))
inline void softmax_row(const float* x, int64_t n, float scale, float* to) {
  if (scale != 1.0f) {
    for_vectors(n, [&](int64_t i, int64_t count) { store_n(to + i, load_n(x + i, count) * scale, count); });
    x = to;
  }
  const Vector top = splat(row_maximum(x, n));
  for_vectors(n, [&](int64_t i, int64_t count) {
    const Vector below = load_n(x + i, count) - top;
    // A NaN stays one: the exponential has none to give.
    store_n(to + i, select(below == below, exponential(below), below), count);
  });
  const float share = 1.0f / row_sum(to, n);
  for_vectors(n, [&](int64_t i, int64_t count) { store_n(to + i, load_n(to + i, count) * share, count); });
}

// dx = y (dy - sum(dy y)) scale
inline void softmax_row_backward(const float* dy, const float* y, int64_t n, float scale, float* dx) {
  RowLanes sums{};
  for (int64_t i = 0; i < n; i += kRowLanes) sums += load_lanes(dy + i, n - i) * load_lanes(y + i, n - i);
  const Vector mean = splat(total(sums));
  for_vectors(n, [&](int64_t i, int64_t count) {
    store_n(dx + i, load_n(y + i, count) * (load_n(dy + i, count) - mean) * scale, count);
  });
}

}  // namespace apportion

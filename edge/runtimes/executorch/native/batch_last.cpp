#include "batch_last.h"

#include <algorithm>

namespace apportion {
namespace {

constexpr int64_t kColumns = 16;  // of a block: a line of the cache on the side of the examples

}  // namespace

void to_lanes(const float* x, int64_t examples, int64_t stride, int64_t columns, float* to, int64_t to_stride, int64_t lanes) {
  for (int64_t c0 = 0; c0 < columns; c0 += kColumns) {
    const int64_t end = std::min(c0 + kColumns, columns);
    for (int64_t c = c0; c < end; ++c) {
      float* row = to + c * to_stride;
      const float* from = x + c;
      for (int64_t n = 0; n < examples; ++n) row[n] = from[n * stride];
      for (int64_t n = examples; n < lanes; ++n) row[n] = 0.0f;
    }
  }
}

void from_lanes(const float* from, int64_t from_stride, int64_t examples, int64_t stride, int64_t columns, float* y) {
  for (int64_t c0 = 0; c0 < columns; c0 += kColumns) {
    const int64_t end = std::min(c0 + kColumns, columns);
    for (int64_t n = 0; n < examples; ++n)
      for (int64_t c = c0; c < end; ++c) y[n * stride + c] = from[c * from_stride + n];
  }
}

}  // namespace apportion

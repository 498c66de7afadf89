// Sums along the last dimension, and softmax and log-softmax over it. Legend: M rows of N.
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "row_softmax.h"
#include "rows.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

// row_sum(x [..., N]) -> [...]
void row_sums(Call& call) {
  const auto sizes = call.tensor(0).sizes();
  const int64_t N = call.size(0, call.rank(0) - 1);
  if (!call.resized(1, {sizes.data(), sizes.size() - 1})) return;
  const float* x = call.in(0);
  float* sums = call.out(1);
  for_rows(call.count(1), N, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) sums[m] = row_sum(x + m * N, N);
  });
}

void log_softmax_row(const float* x, int64_t N, float* y) {
  const Vector top = splat(*std::max_element(x, x + N));
  for_vectors(N, [&](int64_t i, int64_t n) {
    const Vector below = load_n(x + i, n) - top;
    // A NaN stays one: the exponential has none to give.
    store_n(y + i, select(below == below, exponential(below), below), n);
  });
  const Vector total = splat(static_cast<float>(std::log(static_cast<double>(row_sum(y, N)))));
  for_vectors(N, [&](int64_t i, int64_t n) { store_n(y + i, (load_n(x + i, n) - top) - total, n); });
}

// log_softmax(x [..., N]) -> x - max - log(sum(e^(x - max)))
void log_softmax(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const int64_t N = call.size(0, call.rank(0) - 1), M = N > 0 ? call.count(0) / N : 0;
  const float* x = call.in(0);
  float* y = call.out(1);
  for_rows(M, N, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) log_softmax_row(x + m * N, N, y + m * N);
  });
}

// softmax(x [..., N]) -> e^(x - max) / sum(e^(x - max))
void softmax(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const int64_t N = call.size(0, call.rank(0) - 1), M = N > 0 ? call.count(0) / N : 0;
  const float* x = call.in(0);
  float* y = call.out(1);
  for_rows(M, N, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) softmax_row(x + m * N, N, 1.0f, y + m * N);
  });
}

// softmax_backward(dy [..., N], y) -> y (dy - sum(dy y))
void softmax_backward(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const int64_t N = call.size(0, call.rank(0) - 1), M = N > 0 ? call.count(0) / N : 0;
  const float *dy = call.in(0), *y = call.in(1);
  float* dx = call.out(2);
  for_rows(M, N, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) softmax_row_backward(dy + m * N, y + m * N, N, 1.0f, dx + m * N);
  });
}

APPORTION_KERNEL("row_sum", row_sums);
APPORTION_KERNEL("log_softmax", log_softmax);
APPORTION_KERNEL("softmax", softmax);
APPORTION_KERNEL("softmax_backward", softmax_backward);

}  // namespace
}  // namespace apportion

// Sums along the last dimension, and the log-softmax over it. A sum is made in eight lanes whatever a vector holds, so its
// bits are the same on every processor. Legend: M rows of N.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * 4)));

float row_sum(const float* x, int64_t n) {
  Lanes sums{};
  for (int64_t i = 0; i < n; i += kLanes) {
    Lanes part{};
    if (i + kLanes <= n) {
      std::memcpy(&part, x + i, sizeof part);
    } else {
      std::memcpy(&part, x + i, static_cast<size_t>(n - i) * 4);
    }
    sums += part;
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

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

APPORTION_KERNEL("row_sum", row_sums);
APPORTION_KERNEL("log_softmax", log_softmax);

}  // namespace
}  // namespace apportion

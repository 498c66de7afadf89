// Products, and what is done with each entry of them while it is near the processor.
#include "gelu.h"
#include "kernels.h"
#include "products.h"
#include "simd.h"

namespace apportion {
namespace {

// f(offset, count) for the vectors of a part of C [.., n].
template <class F>
void each_of(const Part& part, int64_t n, const F& f) {
  for (int64_t i = part.row; i < part.end_row; ++i)
    for_vectors(part.end_column - part.column, [&](int64_t j, int64_t count) { f(i * n + part.column + j, count); });
}

// linear_gelu(x [M, K], w [N, K], b? [N]) -> y [M, N], slope [M, N]: of x w^T + b the GELU, and its derivative there
void linear_gelu(Call& call) {
  const int64_t M = call.size(0, 0), K = call.size(0, 1), N = call.size(1, 0);
  if (!call.require(call.size(1, 1) == K) || !call.resize(3, {M, N}) || !call.resize(4, {M, N})) return;
  float *y = call.out(3), *slope = call.out(4);
  const auto ending = [&](const Part& part) {
    each_of(part, N, [&](int64_t at, int64_t n) {
      const Vector x = load_n(y + at, n);
      store_n(slope + at, gelu_slope(x), n);
      store_n(y + at, gelu_of(x), n);
    });
  };
  matrix_product(call.in(0), false, call.in(1), true, y, M, N, K, call.in_or_null(2), false, Ending(ending));
}

// product_times(a [M, K], b [K, N], factors: M N of them) -> (a b) * factors
void product_times(Call& call) {
  const int64_t M = call.size(0, 0), K = call.size(0, 1), N = call.size(1, 1);
  if (!call.require(call.size(1, 0) == K && call.count(2) == M * N) || !call.resize(3, {M, N})) return;
  const float* factors = call.in(2);
  float* y = call.out(3);
  const auto ending = [&](const Part& part) {
    each_of(part, N, [&](int64_t at, int64_t n) { store_n(y + at, load_n(y + at, n) * load_n(factors + at, n), n); });
  };
  matrix_product(call.in(0), false, call.in(1), false, y, M, N, K, nullptr, false, Ending(ending));
}

// linear_add(x [M, K], w [N, K], b? [N], addend: M N of them) -> x w^T + b + addend
void linear_add(Call& call) {
  const int64_t M = call.size(0, 0), K = call.size(0, 1), N = call.size(1, 0);
  if (!call.require(call.size(1, 1) == K && call.count(3) == M * N) || !call.resize(4, {M, N})) return;
  const float* addend = call.in(3);
  float* y = call.out(4);
  const auto ending = [&](const Part& part) {
    each_of(part, N, [&](int64_t at, int64_t n) { store_n(y + at, load_n(y + at, n) + load_n(addend + at, n), n); });
  };
  matrix_product(call.in(0), false, call.in(1), true, y, M, N, K, call.in_or_null(2), false, Ending(ending));
}

APPORTION_KERNEL("linear_gelu", linear_gelu);
APPORTION_KERNEL("product_times", product_times);
APPORTION_KERNEL("linear_add", linear_add);

}  // namespace
}  // namespace apportion

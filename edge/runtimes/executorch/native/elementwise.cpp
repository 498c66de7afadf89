// Sums and products of equal shapes, permutation, and matrix products as operators.
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "products.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

// add(a, b, relu) -> y: equal shapes
void add(Call& call) {
  if (!call.require(call.count(0) == call.count(1)) || !call.resize_like(3, 0)) return;
  const float *a = call.in(0), *b = call.in(1);
  float* y = call.out(3);
  const bool relu = call.flag(2);
  each_vector(call.count(0), [&](int64_t i, int64_t n) {
    const Vector sum = load_n(a + i, n) + load_n(b + i, n);
    store_n(y + i, relu ? maximum(sum, Vector{}) : sum, n);
  });
}

// multiply(a, b) -> a * b: equal shapes
void multiply_values(Call& call) {
  if (!call.require(call.count(0) == call.count(1)) || !call.resize_like(2, 0)) return;
  const float *a = call.in(0), *b = call.in(1);
  float* y = call.out(2);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(y + i, load_n(a + i, n) * load_n(b + i, n), n); });
}

// scale(x, factor) -> x * factor
void scale(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const float *x = call.in(0), factor = static_cast<float>(call.number(1));
  float* y = call.out(2);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(y + i, load_n(x + i, n) * factor, n); });
}

// divide(x, n) -> x / n
void divide(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const float* x = call.in(0);
  float* y = call.out(2);
  const float share = static_cast<float>(call.integer(1));
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(y + i, load_n(x + i, n) / share, n); });
}

// embedding_backward(dy [..., E], indices [...], rows, padding) -> [rows, E]
void embedding_backward(Call& call) {
  const int64_t rows = call.integer(2), padding = call.integer(3), E = call.size(0, call.rank(0) - 1);
  if (!call.resize(4, {rows, E})) return;
  const float* dy = call.in(0);
  const auto* indices = static_cast<const int64_t*>(call.tensor(1).const_data_ptr());
  float* dw = call.out(4);
  std::fill_n(dw, rows * E, 0.0f);
  for (int64_t i = 0; i < call.count(1); ++i) {
    if (!call.require(indices[i] >= 0 && indices[i] < rows)) return;
    if (indices[i] == padding) continue;
    for (int64_t e = 0; e < E; ++e) dw[indices[i] * E + e] += dy[i * E + e];
  }
}

// y [rows, columns] from elements x[i * row_step + j * column_step].
template <class T>
void transpose_block(const T* x, int64_t rows, int64_t row_step, int64_t columns, int64_t column_step, T* y) {
  if (column_step == 1) {
    for (int64_t i = 0; i < rows; ++i) std::copy_n(x + i * row_step, columns, y + i * columns);
    return;
  }
  constexpr int64_t kBlock = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock)
    for (int64_t j0 = 0; j0 < columns; j0 += kBlock)
      for (int64_t i = i0; i < std::min(i0 + kBlock, rows); ++i)
        for (int64_t j = j0; j < std::min(j0 + kBlock, columns); ++j)
          y[i * columns + j] = x[i * row_step + j * column_step];
}

// permute(x, order) -> y; x may have waited in float16
template <class T>
void permute_values(Call& call, const T* x, T* (*out)(Call&)) {
  const Ints order = call.ints(1);
  const int64_t rank = call.rank(0);
  if (!call.require(rank == static_cast<int64_t>(order.size()) && rank <= 8)) return;
  std::array<SizesType, 8> sizes{};
  std::array<int64_t, 8> strides{}, steps{}, dims{};
  int64_t stride = 1;
  for (int64_t d = rank - 1; d >= 0; --d) strides[d] = stride, stride *= call.size(0, d);
  int64_t used = 0;
  for (int64_t d = 0; d < rank; ++d) {
    sizes[d] = static_cast<SizesType>(call.size(0, order[d]));
    if (sizes[d] == 1) continue;
    // Neighbours that stay neighbours are one dimension.
    if (used > 0 && steps[used - 1] == strides[order[d]] * sizes[d]) {
      dims[used - 1] *= sizes[d], steps[used - 1] = strides[order[d]];
    } else {
      dims[used] = sizes[d], steps[used++] = strides[order[d]];
    }
  }
  if (!call.resized(2, {sizes.data(), static_cast<size_t>(rank)})) return;
  T* y = out(call);
  while (used < 2) dims[used] = 1, steps[used++] = 0;
  const int64_t inner = dims[used - 1], step = steps[used - 1], middle = dims[used - 2], jump = steps[used - 2];
  const int64_t outer = call.count(0) / std::max<int64_t>(1, inner * middle);
  for_rows(outer, inner * middle, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      int64_t base = 0, left = o;
      for (int64_t d = used - 3; d >= 0; --d) base += left % dims[d] * steps[d], left /= dims[d];
      transpose_block(x + base, middle, jump, inner, step, y + o * inner * middle);
    }
  });
}

void permute(Call& call) {
  if (call.is_half(0)) {
    permute_values<uint16_t>(call, call.halves(0), [](Call& to) { return to.halves_out(2); });
  } else {
    permute_values<float>(call, call.in(0), [](Call& to) { return to.out(2); });
  }
}

constexpr int64_t kGroups = 8, kWorkPerFloat = 16;  // multiply-adds that take as long as a float of a loop over memory

// matrix_product(a [G, M, K], b [G, K, N], transpose_a, transpose_b) -> [G, M, N]; a transposed is [G, K, M]; no G: one
void batched_product(Call& call) {
  const bool ta = call.flag(2), tb = call.flag(3);
  const int first = call.rank(0) == 3 ? 1 : 0;
  const int64_t G = first ? call.size(0, 0) : 1, M = call.size(0, first + ta), K = call.size(0, first + !ta);
  const int64_t N = call.size(1, first + !tb);
  if (!call.require(call.rank(0) == call.rank(1) && call.size(1, first + tb) == K && (!first || call.size(1, 0) == G)) ||
      !(first ? call.resize(4, {G, M, N}) : call.resize(4, {M, N})))
    return;
  const float *a = call.in(0), *b = call.in(1);
  float* c = call.out(4);
  // Each product on one thread where there are enough of them, each on all otherwise.
  const bool many = G >= kGroups;
  const auto product = [&](int64_t g) {
    matrix_product(a + g * M * K, ta, b + g * K * N, tb, c + g * M * N, M, N, K, nullptr, many);
  };
  if (!many) {
    for (int64_t g = 0; g < G; ++g) product(g);
  } else {
    for_rows(G, M * N * K / kWorkPerFloat, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) product(g);
    });
  }
}

// linear(x [M, K], w [N, K], b? [N]) -> [M, N]
void linear(Call& call) {
  const int64_t M = call.size(0, 0), K = call.size(0, 1), N = call.size(1, 0);
  if (!call.require(call.size(1, 1) == K) || !call.resize(3, {M, N})) return;
  matrix_product(call.in(0), false, call.in(1), true, call.out(3), M, N, K, call.in_or_null(2));
}

APPORTION_KERNEL("add", add);
APPORTION_KERNEL("multiply", multiply_values);
APPORTION_KERNEL("scale", scale);
APPORTION_KERNEL("divide", divide);
APPORTION_KERNEL("embedding_backward", embedding_backward);
APPORTION_KERNEL("permute", permute);
APPORTION_KERNEL("matrix_product", batched_product);
APPORTION_KERNEL("linear", linear);

}  // namespace
}  // namespace apportion

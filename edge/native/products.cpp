#include "products.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "simd.h"

namespace apportion {
namespace {

#if defined(__AVX512F__)
constexpr int kWide = 2, kTall1 = 14, kTall2 = 12;  // 32 registers
#elif defined(__AVX__)
constexpr int kWide = 2, kTall1 = 8, kTall2 = 6;  // 16 registers
#elif defined(__aarch64__)
constexpr int kWide = 4, kTall1 = 8, kTall2 = 6;  // 32 registers
#else
constexpr int kWide = 2, kTall1 = 4, kTall2 = 4;
#endif
constexpr int64_t kDepthBlock = 256;

struct Target {
  float* data;
  const int64_t* rows;
  int64_t columns;  // written ones, at most V * VL
  bool accumulate;
};

// Rows R x vectors V held in registers through the whole sum. kUnit: rows are neighbours in memory.
template <int R, int V, bool kUnit>
void tile(const Operand& a, const float* b, int64_t b_row, const Target& c) {
  Vector sums[R][V] = {};
  int64_t row[R];
  for (int r = 0; r < R; ++r) row[r] = kUnit ? r : a.rows[r];
  for (int64_t s = 0; s < a.segment_count; ++s) {
    const float* p = a.data + a.segments[s];
    for (int64_t k = 0; k < a.depth; ++k) {
      Vector factors[V];
      for (int v = 0; v < V; ++v) factors[v] = load(b + v * VL);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] += p[kUnit ? r : row[r]] * factors[v];
      p += a.step;
      b += b_row;
    }
  }
  const bool whole = c.columns == V * VL;
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* to = c.data + c.rows[r] + v * VL;
      const int64_t n = whole ? VL : std::min<int64_t>(VL, c.columns - v * VL);
      if (n == VL) {
        store(to, c.accumulate ? load(to) + sums[r][v] : sums[r][v]);
      } else if (n > 0) {
        store_part(to, c.accumulate ? load_part(to, n) + sums[r][v] : sums[r][v], n);
      }
    }
}

template <int R, int V, bool kUnit>
void rows_of(Operand a, int64_t rows, const float* b, int64_t b_row, Target c) {
  while (rows >= R) {
    tile<R, V, kUnit>(a, b, b_row, c);
    if (kUnit) {
      a.data += R;
    } else {
      a.rows += R;
    }
    c.rows += R;
    rows -= R;
  }
  if constexpr (R > 1) {
    if (rows > 0) rows_of<(R > 8 ? 8 : R / 2), V, kUnit>(a, rows, b, b_row, c);
  }
}

template <bool kUnit>
void panels(const Operand& a, int64_t rows, const float* b, int64_t b_row, int64_t columns, float* c,
            const int64_t* c_rows, bool accumulate) {
  int64_t j = 0;
  while (j < columns) {
    const int64_t left = columns - j;
    if (left > VL * (kWide - 1)) {
      const int64_t n = std::min<int64_t>(left, kWide * VL);
      rows_of<kTall2, kWide, kUnit>(a, rows, b + j, b_row, {c + j, c_rows, n, accumulate});
      j += n;
    } else {
      const int64_t n = std::min<int64_t>(left, VL);
      rows_of<kTall1, 1, kUnit>(a, rows, b + j, b_row, {c + j, c_rows, n, accumulate});
      j += n;
    }
  }
}

constexpr int kDotRows = 4, kDotColumns = 4;

// C tile [MR, NR] of A [m, k] times the transpose of B [n, k]: both are read along k, nothing is packed.
template <int MR, int NR>
void dots(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t k, float* c, int64_t c_row, bool add) {
  Vector sums[MR][NR] = {};
  int64_t i = 0;
  for (; i + VL <= k; i += VL) {
    Vector right[NR];
    for (int n = 0; n < NR; ++n) right[n] = load(b + n * b_row + i);
    for (int m = 0; m < MR; ++m) {
      const Vector left = load(a + m * a_row + i);
      for (int n = 0; n < NR; ++n) sums[m][n] += left * right[n];
    }
  }
  for (int m = 0; m < MR; ++m)
    for (int n = 0; n < NR; ++n) {
      float total = sum(sums[m][n]);
      for (int64_t j = i; j < k; ++j) total += a[m * a_row + j] * b[n * b_row + j];
      float& out = c[m * c_row + n];
      out = add ? out + total : total;
    }
}

// Blocks along k keep the rows of A in the first-level cache while B streams through once.
void dot_product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, bool accumulate) {
  constexpr int64_t kBlock = 512;
  for (int64_t k0 = 0; k0 < k; k0 += kBlock) {
    const int64_t depth = std::min(kBlock, k - k0);
    const bool add = accumulate || k0 > 0;
    for (int64_t j = 0; j < n; j += kDotColumns)
      for (int64_t i = 0; i < m; i += kDotRows) {
        const float *pa = a + i * k + k0, *pb = b + j * k + k0;
        float* pc = c + i * n + j;
        if (i + kDotRows <= m && j + kDotColumns <= n) {
          dots<kDotRows, kDotColumns>(pa, k, pb, k, depth, pc, n, add);
        } else {
          for (int64_t r = 0; r < std::min<int64_t>(kDotRows, m - i); ++r)
            for (int64_t q = 0; q < std::min<int64_t>(kDotColumns, n - j); ++q)
              dots<1, 1>(pa + r * k, k, pb + q * k, k, depth, pc + r * n + q, n, add);
        }
      }
  }
}

}  // namespace

void multiply(const Operand& a, int64_t rows, const float* b, int64_t b_row, int64_t columns, float* c,
              const int64_t* c_rows, bool accumulate) {
  if (a.rows == nullptr) {
    panels<true>(a, rows, b, b_row, columns, c, c_rows, accumulate);
  } else {
    panels<false>(a, rows, b, b_row, columns, c, c_rows, accumulate);
  }
}

void matrix_product(const float* a, bool transpose_a, const float* b, bool transpose_b, float* c, int64_t m, int64_t n,
                    int64_t k, bool accumulate) {
  if (transpose_b && !transpose_a && m <= 64) return dot_product(a, b, c, m, n, k, accumulate);
  const int64_t* a_rows = transpose_a ? nullptr : offsets(0, m, k);
  const int64_t* c_rows = offsets(1, m, n);
  const int64_t a_step = transpose_a ? m : 1;
  const bool packs = transpose_b || n % VL != 0;
  const int64_t b_row = packs ? padded_columns(n) : n;
  if (k == 0 && !accumulate) std::fill_n(c, m * n, 0.0f);
  for (int64_t k0 = 0; k0 < k; k0 += kDepthBlock) {
    const int64_t depth = std::min(kDepthBlock, k - k0), none = 0;
    const float* block = transpose_b ? b + k0 : b + k0 * n;
    if (packs) {
      float* packed = scratch(0, depth * b_row);
      pack(block, transpose_b ? 1 : n, transpose_b ? k : 1, depth, n, packed);
      block = packed;
    }
    multiply({a + k0 * a_step, a_rows, a_step, &none, 1, depth}, m, block, b_row, n, c, c_rows, accumulate || k0 > 0);
  }
}

int64_t padded_columns(int64_t columns) { return (columns + VL - 1) / VL * VL; }

void pack(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, float* packed) {
  constexpr int64_t kBlock = 16;
  const int64_t width = padded_columns(n);
  for (int64_t j0 = 0; j0 < width; j0 += kBlock)
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = j0; j < std::min(j0 + kBlock, width); ++j)
        packed[i * width + j] = j < n ? b[i * k_stride + j * n_stride] : 0.0f;
}

const int64_t* offsets(int slot, int64_t count, int64_t stride) {
  struct Table {
    std::vector<int64_t> values;
    int64_t stride = 0;
  };
  static thread_local Table tables[4];
  Table& table = tables[slot];
  if (table.stride != stride) table.values.clear();
  table.stride = stride;
  for (int64_t i = static_cast<int64_t>(table.values.size()); i < count; ++i) table.values.push_back(i * stride);
  return table.values.data();
}

float* scratch(int slot, int64_t floats) {
  struct Buffer {
    std::unique_ptr<float[]> data;
    int64_t size = 0;
  };
  static thread_local Buffer buffers[4];
  Buffer& buffer = buffers[slot];
  if (buffer.size < floats) {
    buffer.data.reset();
    buffer.data.reset(new float[static_cast<size_t>(floats)]);
    buffer.size = floats;
  }
  return buffer.data.get();
}

}  // namespace apportion

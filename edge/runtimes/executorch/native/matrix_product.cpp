// Matrix products: C cut into chunks, A and B laid out for the inner loop of products.cpp.
#include <algorithm>
#include <cstring>

#include "products.h"
#include "simd.h"
#include "threads.h"
#include "tile_sizes.h"

namespace apportion {
namespace {

constexpr int64_t kWorkPerChunk = 1 << 21;  // multiply-adds

// Columns, a multiple of `step`, that are a chunk's work in a product of m rows and depth k.
int64_t columns_of_chunk(int64_t m, int64_t n, int64_t k, int64_t step) {
  const int64_t columns = kWorkPerChunk / std::max<int64_t>(1, m * k);
  return std::min((n + step - 1) / step, std::max<int64_t>(1, columns / step)) * step;
}

// A dot product is summed in eight lanes on every processor, lane l holding k = l, l + 8, ...: its bits do not depend on
// the width of a vector. A vector of 16 floats serves two columns at once; with 4 floats k is passed over twice.
constexpr int kLanes = 8;
constexpr int kShare = VL > kLanes ? VL / kLanes : 1, kParts = VL < kLanes ? kLanes / VL : 1;
#if defined(__AVX512F__)
constexpr int kDotRows = 4, kDotColumns = 8;
#elif defined(__AVX__)
constexpr int kDotRows = 2, kDotColumns = 6;
#else
constexpr int kDotRows = 4, kDotColumns = 4;
#endif
typedef float Lanes __attribute__((vector_size(kLanes * 4)));

// Lanes l of the columns that share a vector, from p and from p + next; zeros where k ends after n.
inline Vector lanes(const float* p, int64_t next, int64_t n) {
#if defined(__AVX512F__)
  Lanes low{}, high{};
  std::memcpy(&low, p, static_cast<size_t>(n) * 4);
  std::memcpy(&high, p + next, static_cast<size_t>(n) * 4);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  return load_n(p, n);
#endif
}

inline float folded(const Vector* parts, int share) {
  float lane[kLanes];
  std::memcpy(lane, reinterpret_cast<const float*>(parts) + share * kLanes, sizeof lane);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// C tile [MR, NR] of A [m, k] times the transpose of B [n, k]: both are read along k, nothing is packed.
template <int MR, int NR>
void dots(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t k, float* c, int64_t c_row, bool add) {
  constexpr int kWidth = (NR + kShare - 1) / kShare;
  const int64_t next = NR > 1 ? b_row : 0;
  Vector parts[MR][kWidth][kParts];
  for (int part = 0; part < kParts; ++part) {
    Vector sums[MR][kWidth] = {};
    const auto step = [&](int64_t i, int64_t n) {
      Vector right[kWidth];
      for (int w = 0; w < kWidth; ++w) right[w] = lanes(b + w * kShare * b_row + i, next, n);
      for (int m = 0; m < MR; ++m) {
        const Vector left = lanes(a + m * a_row + i, 0, n);
        for (int w = 0; w < kWidth; ++w) sums[m][w] += left * right[w];
      }
    };
    constexpr int64_t kPart = kLanes / kParts;
    int64_t i = part * kPart;
    for (; i + kPart <= k; i += kLanes) step(i, kPart);
    if (i < k) step(i, k - i);
    for (int m = 0; m < MR; ++m)
      for (int w = 0; w < kWidth; ++w) parts[m][w][part] = sums[m][w];
  }
  for (int m = 0; m < MR; ++m)
    for (int n = 0; n < NR; ++n) {
      const float total = folded(parts[m][n / kShare], n % kShare);
      float& out = c[m * c_row + n];
      out = add ? out + total : total;
    }
}

template <int MR, int NR>
void dot_columns(const float* a, const float* b, float* c, int64_t n, int64_t c_row, int64_t k, int64_t depth, bool add) {
  for (; n >= NR; n -= NR, b += NR * k, c += NR) dots<MR, NR>(a, k, b, k, depth, c, c_row, add);
  if constexpr (NR > 1) {
    if (n > 0) dot_columns<MR, NR / 2>(a, b, c, n, c_row, k, depth, add);
  }
}

// Blocks along k keep the rows of A in the first-level cache while B streams through once.
void dot_product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, bool accumulate) {
  constexpr int64_t kBlock = 512;
  const int64_t columns_per_chunk = columns_of_chunk(m, n, k, kDotColumns);
  for_ranges(n, columns_per_chunk, [&](int64_t begin, int64_t end) {
    for (int64_t k0 = 0; k0 < k; k0 += kBlock) {
      const int64_t depth = std::min(kBlock, k - k0);
      const bool add = accumulate || k0 > 0;
      for (int64_t j = begin; j < end; j += kDotColumns) {
        const int64_t columns = std::min<int64_t>(kDotColumns, end - j);
        const float* pb = b + j * k + k0;
        int64_t i = 0;
        for (; i + kDotRows <= m; i += kDotRows)
          dot_columns<kDotRows, kDotColumns>(a + i * k + k0, pb, c + i * n + j, columns, n, k, depth, add);
        for (; i < m; ++i) dot_columns<1, kDotColumns>(a + i * k + k0, pb, c + i * n + j, columns, n, k, depth, add);
      }
    }
  });
}

// Rows of B that lie far apart: processors foresee only those that follow each other.
inline void fetch_next(const float* panel, int64_t row, int64_t depth) {
  constexpr int64_t kLine = 16;
  for (int64_t k = 0; k < depth; ++k, panel += row)
    for (int64_t i = 0; i < kPanel; i += kLine) __builtin_prefetch(panel + i, 0, 2);
}

}  // namespace

void matrix_product(const float* a, bool transpose_a, const float* b, bool transpose_b, float* c, int64_t m, int64_t n,
                    int64_t k, const float* bias, bool is_one_of_many, Ending ending) {
  if (transpose_b && !transpose_a && m <= 64 && !is_one_of_many) {
    if (bias)
      for (int64_t i = 0; i < m; ++i) std::copy_n(bias, n, c + i * n);
    dot_product(a, b, c, m, n, k, bias != nullptr);
    return ending({0, m, 0, n});
  }
  const int64_t* a_rows = transpose_a ? nullptr : offsets(0, m, k);
  const int64_t* c_rows = offsets(1, m, n);
  const int64_t a_step = transpose_a ? m : 1, none = 0;
  for (int64_t i = 0; k == 0 && i < m; ++i) bias ? std::copy_n(bias, n, c + i * n) : std::fill_n(c + i * n, n, 0.0f);
  if (k == 0) return ending({0, m, 0, n});
  // Chunks are some rows of C where it is tall, else some columns.
  constexpr int64_t kRows = 48, kTall = 64, kShort = 64, kMany = 16, kFewOfB = 1 << 17;
  const bool tall = m >= 4 * kRows || m >= n, packs = transpose_b || n % VL != 0 || (m >= kTall && n > kPanel);
  const int64_t work = std::max<int64_t>(1, n * std::min(k, kDepthBlock));
  const int64_t columns = tall ? n : columns_of_chunk(m, n, std::min(k, kDepthBlock), kPanel);
  int64_t rows = tall ? std::max<int64_t>(1, kWorkPerChunk / work / kRows) * kRows : m;
  if (tall && rows == kRows && m < kMany * kRows) rows = kRows / 2;  // so that threads end at about the same time
  const int64_t across = (n + columns - 1) / columns, down = (m + rows - 1) / rows;
  // All of a B that stays near the processor is there before the first chunk: C is then written by one job, part by part.
  const int64_t together = tall && packs && k * padded_columns(n) <= kFewOfB ? k : std::min(k, kDepthBlock);
  float* room = packs ? scratch(0, together * padded_columns(n)) : nullptr;
  for (int64_t k1 = 0; k1 < k; k1 += together) {
    const int64_t here = std::min(together, k - k1);
    const float* block = transpose_b ? b + k1 : b + k1 * n;
    const Right right = packs ? pack_all(block, transpose_b ? 1 : n, transpose_b ? k : 1, here, n, room) : as_it_lies(block, n);
    for_chunks(across * down, [&](int64_t chunk) {
      const int64_t i = chunk / across * rows, j = chunk % across * columns;
      const int64_t last = std::min(m, i + rows), end = std::min(n, j + columns), across_at_once = packs ? columns : kPanel;
      // Rows of C that are written once from little of B go one tile after the other, so that memory sees a few streams.
      const int64_t each = k <= kShort ? kTall2 : rows;
      for (int64_t r = i; r < last; r += each) {
        const int64_t some_rows = std::min(each, last - r);
        for (int64_t k0 = k1; k0 < k1 + here; k0 += kDepthBlock) {
          const int64_t depth = std::min(kDepthBlock, k1 + here - k0);
          const Operand left{a + k0 * a_step + (transpose_a ? r : 0), transpose_a ? nullptr : a_rows + r, a_step, &none, 1, depth};
          Right some = right;
          some.data += j / kPanel * right.panel;
          some.first = k0 - k1;
          for (int64_t at = j; at < end; at += across_at_once, some.data += some.panel) {
            if (!packs && at + kPanel < end) fetch_next(some.data + kPanel, some.row, depth);
            multiply(left, some_rows, some, std::min(across_at_once, end - at), c + at, c_rows + r, k0 > 0,
                     k0 == 0 && bias ? bias + at : nullptr);
          }
        }
        if (k1 + here == k) ending({r, r + some_rows, j, end});
      }
    });
  }
}

}  // namespace apportion

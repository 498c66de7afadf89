#include "products.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "arm_tile.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

#if defined(__aarch64__) || defined(APPORTION_LIKE_ARM)
constexpr int kWide = 4, kTall1 = 8, kTall2 = 6;  // 32 registers; see arm_tile.h
#elif defined(__AVX512F__)
constexpr int kWide = 2, kTall1 = 14, kTall2 = 12;  // 32 registers
#elif defined(__AVX__)
constexpr int kWide = 2, kTall1 = 8, kTall2 = 6;  // 16 registers
#else
constexpr int kWide = 2, kTall1 = 4, kTall2 = 4;
#endif
constexpr int64_t kPanel = kWide * VL;  // columns that a tile has
constexpr int64_t kDepthBlock = 256;    // of a panel that stays in the first-level cache
#if defined(__aarch64__) || defined(APPORTION_LIKE_ARM)
// Of 32 KB, a panel is half. Rows that are neighbours bring a line of memory per k, which tiles after them use too: the
// lines stay there while k goes half as far. Sums wait in memory meanwhile, and are the same.
constexpr int64_t kDepthAtOnce = 64;
#else
constexpr int64_t kDepthAtOnce = kDepthBlock;
#endif

struct Target {
  float* data;
  const int64_t* rows;
  int64_t columns;  // written ones, at most V * VL
  bool accumulate;
  const float* bias = nullptr;  // of every row, where sums begin with one
};

// kept [R, V], added to where it goes on, else begun: rows R x vectors V held in registers through the whole sum. kUnit:
// rows are neighbours in memory.
template <int R, int V, bool kUnit>
inline void tile_sums(const Operand& a, const float* b, int64_t b_row, Vector (&kept)[R][V], bool goes_on) {
#if defined(APPORTION_ARM_TILE)
  if constexpr (R == 6 && V == 4) {
    float* to = reinterpret_cast<float*>(kept);
    if (a.segment_count == 0 || a.depth == 0) {
      if (!goes_on) std::fill_n(to, R * V * VL, 0.0f);
    } else if constexpr (kUnit) {
      arm_tile_of_neighbours(a, b, b_row, to, goes_on);
    } else {
      arm_tile_of_rows(a, b, b_row, to, goes_on);
    }
    return;
  }
#endif
  Vector sums[R][V] = {};
  if (goes_on) std::memcpy(sums, kept, sizeof sums);
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
      p += kUnit ? a.step : 1;
      b += b_row;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) kept[r][v] = sums[r][v];
}

// The whole sum of a row with a bias: it joins here, so that C is written once and not read.
template <int R, int V>
inline void write_with_bias(const Vector (&sums)[R][V], const Target& c) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    const int64_t n = std::min<int64_t>(VL, c.columns - v * VL);
    if (n <= 0) return;
    const Vector bias = load_n(c.bias + v * VL, n);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store_n(c.data + c.rows[r] + v * VL, bias + sums[r][v], n);
  }
}

template <int R, int V>
inline void write(const Vector (&sums)[R][V], const Target& c) {
  if (c.columns == V * VL) {
    // Written out, so that sums go from registers to C.
    if (c.accumulate) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(c.data + c.rows[r] + v * VL, load(c.data + c.rows[r] + v * VL) + sums[r][v]);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(c.data + c.rows[r] + v * VL, sums[r][v]);
    }
    return;
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* to = c.data + c.rows[r] + v * VL;
      const int64_t n = std::min<int64_t>(VL, c.columns - v * VL);
      if (n > 0) store_part(to, c.accumulate ? load_part(to, n) + sums[r][v] : sums[r][v], n);
    }
}

template <int R, int V, bool kUnit, bool kBias>
void tile(const Operand& a, const float* b, int64_t b_row, const Target& c) {
  Vector sums[R][V];
  tile_sums<R, V, kUnit>(a, b, b_row, sums, false);
  if constexpr (kBias) {
    write_with_bias(sums, c);
  } else {
    write(sums, c);
  }
}

// Some tiles of rows that are neighbours, kDepthAtOnce of k after another: the rows that are left.
template <int R, int V>
int64_t tiles_in_turn(Operand& a, int64_t rows, const float* b, int64_t b_row, Target& c) {
  constexpr int64_t kTiles = 8;
  const int64_t together = std::max<int64_t>(1, kDepthAtOnce / a.depth), longest = std::min(kDepthAtOnce, a.depth);
  while (rows >= R) {
    const int64_t tiles = std::min(rows / R, kTiles);
    Vector sums[kTiles][R][V];
    for (int64_t s = 0; s < a.segment_count; s += together)
      for (int64_t k = 0; k < a.depth; k += longest) {
        Operand part{a.data + k * a.step, nullptr, a.step, a.segments + s, std::min(together, a.segment_count - s),
                     std::min(longest, a.depth - k)};
        const float* from = b + (s * a.depth + k) * b_row;
        for (int64_t i = 0; i < tiles; ++i, part.data += R)
          tile_sums<R, V, true>(part, from, b_row, sums[i], s > 0 || k > 0);
      }
    for (int64_t i = 0; i < tiles; ++i, c.rows += R) write(sums[i], c);
    a.data += tiles * R;
    rows -= tiles * R;
  }
  return rows;
}

template <int R, int V, bool kUnit, bool kBias>
void rows_of(Operand a, int64_t rows, const float* b, int64_t b_row, Target c) {
  if constexpr (kUnit && !kBias && R == kTall2 && V == kWide) {
    if (a.segment_count * a.depth > kDepthAtOnce && kDepthAtOnce < kDepthBlock)
      rows = tiles_in_turn<R, V>(a, rows, b, b_row, c);
  }
  while (rows >= R) {
    tile<R, V, kUnit, kBias>(a, b, b_row, c);
    if (kUnit) {
      a.data += R;
    } else {
      a.rows += R;
    }
    c.rows += R;
    rows -= R;
  }
  if constexpr (R > 1) {
    if (rows > 0) rows_of<(R > 8 ? 8 : R / 2), V, kUnit, kBias>(a, rows, b, b_row, c);
  }
}

template <bool kUnit, bool kBias = false>
void panels(const Operand& a, int64_t rows, const Right& b, int64_t columns, float* c, const int64_t* c_rows,
            bool accumulate, const float* bias = nullptr) {
  for (int64_t j = 0; j < columns; j += kPanel) {
    const int64_t n = std::min(columns - j, kPanel);
    const int64_t row = columns - j < kPanel ? b.last_row : b.row;
    const float* panel = b.data + j / kPanel * b.panel + b.first * row;
    Target target{c + j, c_rows, n, accumulate, kBias ? bias + j : nullptr};
    if (n > VL * (kWide - 1)) {
      rows_of<kTall2, kWide, kUnit, kBias>(a, rows, panel, row, target);
    } else {
      for (int64_t v = 0; v < n; v += VL, target.data += VL, target.bias += kBias ? VL : 0) {
        target.columns = std::min<int64_t>(n - v, VL);
        rows_of<kTall1, 1, kUnit, kBias>(a, rows, panel + v, row, target);
      }
    }
  }
}

// Rows of B that lie far apart: processors foresee only those that follow each other.
inline void fetch_next(const float* panel, int64_t row, int64_t depth) {
  constexpr int64_t kLine = 16;
  for (int64_t k = 0; k < depth; ++k, panel += row)
    for (int64_t i = 0; i < kPanel; i += kLine) __builtin_prefetch(panel + i, 0, 2);
}

// As multiply(), sums begin with the bias of their column.
void begin_with_bias(const Operand& a, int64_t rows, const Right& b, int64_t columns, float* c, const int64_t* c_rows,
                     const float* bias) {
  if (a.rows == nullptr) {
    panels<true, true>(a, rows, b, columns, c, c_rows, false, bias);
  } else {
    panels<false, true>(a, rows, b, columns, c, c_rows, false, bias);
  }
}

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

// As pack(), of the panel that begins at column j.
void pack_panel(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, int64_t j, float* to, int64_t depth,
                int64_t first) {
  const int64_t columns = std::min(n - j, kPanel), width = columns < kPanel ? padded_columns(columns) : kPanel;
  b += j * n_stride;
  to += j * depth + first * width;
  if (n_stride == 1) {
    for (int64_t i = 0; i < k; ++i, b += k_stride, to += width) {
      std::copy_n(b, columns, to);
      std::fill_n(to + columns, width - columns, 0.0f);
    }
    return;
  }
  constexpr int64_t kBlock = 16;
  for (int64_t j0 = 0; j0 < width; j0 += kBlock)
    for (int64_t i = 0; i < k; ++i)
      for (int64_t c = j0; c < std::min(j0 + kBlock, width); ++c)
        to[i * width + c] = c < columns ? b[i * k_stride + c * n_stride] : 0.0f;
}

}  // namespace

void multiply(const Operand& a, int64_t rows, const Right& b, int64_t columns, float* c, const int64_t* c_rows,
              bool accumulate) {
  if (a.rows == nullptr) {
    panels<true>(a, rows, b, columns, c, c_rows, accumulate);
  } else {
    panels<false>(a, rows, b, columns, c, c_rows, accumulate);
  }
}

Right as_it_lies(const float* b, int64_t row) { return {b, row, kPanel, row}; }

Right packed(const float* data, int64_t depth, int64_t columns) {
  return {data, kPanel, depth * kPanel, padded_columns(columns % kPanel)};
}

void multiply_in_parts(Operand a, int64_t rows, Right b, int64_t columns, float* c, const int64_t* c_rows, bool accumulate) {
  const float* data = a.data;
  const int64_t* segments = a.segments;
  const int64_t depth = a.depth, all = a.segment_count;
  const int64_t splits = std::max<int64_t>(1, (depth + kDepthBlock - 1) / kDepthBlock), longest = (depth + splits - 1) / splits;
  const int64_t together = splits > 1 ? 1 : std::max<int64_t>(1, kDepthBlock / std::max<int64_t>(1, depth));
  const int64_t first = b.first;
  for (int64_t s = 0; s < all; s += together)
    for (int64_t k = 0; k < depth; k += longest) {
      a.data = data + k * a.step;
      a.segments = segments + s;
      a.segment_count = std::min(together, all - s);
      a.depth = std::min(longest, depth - k);
      b.first = first + s * depth + k;
      multiply(a, rows, b, columns, c, c_rows, accumulate || s > 0 || k > 0);
    }
}

void matrix_product(const float* a, bool transpose_a, const float* b, bool transpose_b, float* c, int64_t m, int64_t n,
                    int64_t k, const float* bias, bool is_one_of_many) {
  if (transpose_b && !transpose_a && m <= 64 && !is_one_of_many) {
    if (bias)
      for (int64_t i = 0; i < m; ++i) std::copy_n(bias, n, c + i * n);
    return dot_product(a, b, c, m, n, k, bias != nullptr);
  }
  const int64_t* a_rows = transpose_a ? nullptr : offsets(0, m, k);
  const int64_t* c_rows = offsets(1, m, n);
  const int64_t a_step = transpose_a ? m : 1, none = 0;
  for (int64_t i = 0; k == 0 && i < m; ++i) bias ? std::copy_n(bias, n, c + i * n) : std::fill_n(c + i * n, n, 0.0f);
  // Chunks are some rows of C where it is tall, else some columns.
  constexpr int64_t kRows = 48, kTall = 64, kShort = 64;
  const bool tall = m >= 4 * kRows || m >= n, packs = transpose_b || n % VL != 0 || (m >= kTall && n > kPanel);
  const int64_t work = std::max<int64_t>(1, n * std::min(k, kDepthBlock));
  const int64_t columns = tall ? n : columns_of_chunk(m, n, std::min(k, kDepthBlock), kPanel);
  const int64_t rows = tall ? std::max<int64_t>(1, kWorkPerChunk / work / kRows) * kRows : m;
  const int64_t across = (n + columns - 1) / columns, down = (m + rows - 1) / rows;
  float* room = packs ? scratch(0, std::min(k, kDepthBlock) * padded_columns(n)) : nullptr;
  for (int64_t k0 = 0; k0 < k; k0 += kDepthBlock) {
    const int64_t depth = std::min(kDepthBlock, k - k0);
    const float* block = transpose_b ? b + k0 : b + k0 * n;
    const Right right = packs ? pack_all(block, transpose_b ? 1 : n, transpose_b ? k : 1, depth, n, room) : as_it_lies(block, n);
    for_chunks(across * down, [&](int64_t chunk) {
      const int64_t i = chunk / across * rows, j = chunk % across * columns;
      Right part = right;
      part.data += j / kPanel * right.panel;
      // Rows of C that are written once from little of B go one tile after the other, so that memory sees a few streams.
      const int64_t last = std::min(m, i + rows), each = k <= kShort ? kTall2 : rows;
      const bool begins = k0 == 0;
      for (int64_t r = i; r < last; r += each) {
        const Operand left{a + k0 * a_step + (transpose_a ? r : 0), transpose_a ? nullptr : a_rows + r, a_step, &none, 1, depth};
        const int64_t end = std::min(n, j + columns), across_at_once = packs ? columns : kPanel;
        Right some = part;
        for (int64_t at = j; at < end; at += across_at_once, some.data += some.panel) {
          if (!packs && at + kPanel < end) fetch_next(some.data + kPanel, some.row, depth);
          const int64_t n_rows = std::min(each, last - r), n_columns = std::min(across_at_once, end - at);
          if (begins && bias) {
            begin_with_bias(left, n_rows, some, n_columns, c + at, c_rows + r, bias + at);
          } else {
            multiply(left, n_rows, some, n_columns, c + at, c_rows + r, !begins);
          }
        }
      }
    });
  }
}

int64_t padded_columns(int64_t columns) { return (columns + VL - 1) / VL * VL; }

void pack(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, float* to, int64_t depth, int64_t first) {
  for (int64_t j = 0; j < n; j += kPanel) pack_panel(b, k_stride, n_stride, k, n, j, to, depth, first);
}

int64_t packed_at(int64_t k, int64_t j, int64_t depth, int64_t width) {
  const int64_t panel = j / kPanel * kPanel, columns = std::min(kPanel, width - panel);
  return panel * depth + k * columns + (j - panel);
}

Right pack_all(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, float* to) {
  for_rows((n + kPanel - 1) / kPanel, k * kPanel, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel)
      pack_panel(b, k_stride, n_stride, k, n, panel * kPanel, to, k, 0);
  });
  return packed(to, k, n);
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

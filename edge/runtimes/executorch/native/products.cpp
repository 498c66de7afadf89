#include "products.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "arm_tile.h"
#include "simd.h"
#include "threads.h"
#include "tile_sizes.h"

namespace apportion {
namespace {

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

// As pack(), of the panel that begins at column j.
void pack_panel(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, int64_t j, float* to, int64_t depth,
                int64_t first) {
  const int64_t columns = std::min(n - j, kPanel), width = columns < kPanel ? padded_columns(columns) : kPanel;
  b += j * n_stride;
  to += j * depth + first * width;
  if (n_stride == 1 && columns == kPanel) {
    for (int64_t i = 0; i < k; ++i, b += k_stride, to += kPanel)
      for (int v = 0; v < kWide; ++v) store(to + v * VL, load(b + v * VL));
    return;
  }
  if (n_stride == 1) {
    for (int64_t i = 0; i < k; ++i, b += k_stride, to += width)
      for (int64_t c = 0; c < width; c += VL) store(to + c, load_n(b + c, std::min<int64_t>(VL, columns - c)));
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
              bool accumulate, const float* bias) {
  if (bias) {
    a.rows ? panels<false, true>(a, rows, b, columns, c, c_rows, false, bias)
           : panels<true, true>(a, rows, b, columns, c, c_rows, false, bias);
  } else if (a.rows == nullptr) {
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

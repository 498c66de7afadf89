// Convolutions of every channel by itself, and their gradients: vectors run over channels. Legend as in convolution.h.
#include <algorithm>
#include <vector>

#include "convolution.h"
#include "simd.h"

namespace apportion {
namespace {

// [R, S, C] of depthwise weights [C, R, S].
const float* taps_first(const Geometry& g, const float* w) {
  float* taps = scratch(0, g.R * g.S * g.C);
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) taps[t * g.C + c] = w[c * g.R * g.S + t];
  return taps;
}

// Sums of this many pixels, or of so many taps, are made at once: a sum waits for the product before it, its neighbours
// do not. Each is what it is alone, bit for bit.
constexpr int64_t kPixels = 8;

// to[i * to_step] for kCount pixels i: begin + sums over taps of x[i * step + place] * w[tap]; each_tap(add) calls
// add(place, tap) for every tap.
template <int kCount, class F>
inline void pixels_at_once(const float* x, int64_t step, const float* w, Vector begin, float* to, int64_t to_step, int64_t count,
                           const F& each_tap) {
  Vector sums[kCount];
  for (int i = 0; i < kCount; ++i) sums[i] = begin;
  each_tap([&](int64_t place, int64_t tap) {
    const Vector factor = load_n(w + tap, count);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) sums[i] += load_n(x + place + i * step, count) * factor;
  });
  for (int i = 0; i < kCount; ++i) store_n(to + i * to_step, sums[i], count);
}

// own[i * C] += sum over `rows` rows of output pixels of dy times x at places[i], for kCount taps i. row: of padded x.
template <int kCount>
inline void taps_at_once(const Geometry& g, const float* x, int64_t row, const int64_t* places, const float* dy, int64_t rows,
                         float* own, int64_t count) {
  Vector sums[kCount];
  for (int i = 0; i < kCount; ++i) sums[i] = load_n(own + i * g.C, count);
  for (int64_t p = 0; p < rows; ++p)
    for (int64_t q = 0; q < g.Q; ++q) {
      const Vector factor = load_n(dy + (p * g.Q + q) * g.C, count);
      const float* from = x + p * g.stride_h * row + q * g.stride_w * g.C;
#pragma GCC unroll 9
      for (int i = 0; i < kCount; ++i) sums[i] += load_n(from + places[i], count) * factor;
    }
  for (int i = 0; i < kCount; ++i) store_n(own + i * g.C, sums[i], count);
}

}  // namespace

void depthwise_forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y) {
  const float* taps = taps_first(g, w);
  const Padding padding{g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w};
  const Pieces pieces(g.N, g.P, g.Q);
  for_chunks(pieces.count(), [&](int64_t i) {
    const auto piece = pieces.at(i);
    const int64_t rows = (piece.rows - 1) * g.stride_h + g.reach_h() + 1;
    for (int64_t n = piece.image; n < piece.image + piece.images; ++n) {
      const float* image = padding.of(x + n * g.H * g.W * g.C, 1, piece.row * g.stride_h, rows);
      for (int64_t p = 0; p < piece.rows; ++p)
        for_vectors(g.C, [&](int64_t c, int64_t count) {
          const Vector begin = bias ? load_n(bias + c, count) : Vector{};
          const auto each_tap = [&](const auto& add) {
            for (int64_t r = 0; r < g.R; ++r)
              for (int64_t s = 0; s < g.S; ++s)
                add(r * g.dilation_h * padding.row() + s * g.dilation_w * g.C, (r * g.S + s) * g.C);
          };
          const float* corner = image + p * g.stride_h * padding.row() + c;
          float* pixel = y + (n * g.P + piece.row + p) * g.Q * g.C + c;
          const int64_t step = g.stride_w * g.C;
          int64_t q = 0;
          for (; q + kPixels <= g.Q; q += kPixels)
            pixels_at_once<kPixels>(corner + q * step, step, taps + c, begin, pixel + q * g.C, g.C, count, each_tap);
          for (; q < g.Q; ++q)
            pixels_at_once<1>(corner + q * step, step, taps + c, begin, pixel + q * g.C, g.C, count, each_tap);
        });
    }
  });
}

void depthwise_input_gradient(const Geometry& g, const float* dy, const float* w, float* dx) {
  const float* taps = taps_first(g, w);
  // The taps that reach each input row and column, and the output row or column that each comes from.
  const auto all = [](int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int64_t limit) {
    std::vector<std::vector<Reach>> found;
    for (int64_t pixel = 0; pixel < size; ++pixel) {
      found.push_back(reaching(pixel % stride, kernel, stride, pad, dilation));
      for (Reach& reach : found.back()) reach.first += pixel / stride;
      std::erase_if(found.back(), [&](const Reach& reach) { return reach.first < 0 || reach.first >= limit; });
    }
    return found;
  };
  const auto down_taps = all(g.H, g.R, g.stride_h, g.pad_h, g.dilation_h, g.P);
  const auto across_taps = all(g.W, g.S, g.stride_w, g.pad_w, g.dilation_w, g.Q);
  // Pixels v, v + stride, ... are reached by the same taps, each from the next output column, but near the edges.
  const auto alike = [&](int64_t v) {
    if (v + (kPixels - 1) * g.stride_w >= g.W) return false;
    const auto &first = across_taps[static_cast<size_t>(v)], &last = across_taps[static_cast<size_t>(v + (kPixels - 1) * g.stride_w)];
    // Taps that reach both ends reach what lies between.
    return first.size() == last.size() && std::equal(first.begin(), first.end(), last.begin(), [](const Reach& a, const Reach& b) {
      return a.tap == b.tap && a.first + kPixels - 1 == b.first;
    });
  };
  for_rows(g.N * g.H, g.W * g.C, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* image = dy + row / g.H * g.P * g.Q * g.C;
      const auto& rows = down_taps[static_cast<size_t>(row % g.H)];
      for (int64_t phase = 0; phase < std::min(g.stride_w, g.W); ++phase)
        for (int64_t v = phase; v < g.W;) {
          const bool several = alike(v);
          const auto& across = across_taps[static_cast<size_t>(v)];
          for_vectors(g.C, [&](int64_t c, int64_t count) {
            const auto each_tap = [&](const auto& add) {
              for (const Reach& r : rows)
                for (const Reach& s : across) add((r.first * g.Q + s.first) * g.C, (r.tap * g.S + s.tap) * g.C);
            };
            float* to = dx + (row * g.W + v) * g.C + c;
            if (several) {
              pixels_at_once<kPixels>(image + c, g.C, taps + c, Vector{}, to, g.stride_w * g.C, count, each_tap);
            } else {
              pixels_at_once<1>(image + c, g.C, taps + c, Vector{}, to, g.C, count, each_tap);
            }
          });
          v += (several ? kPixels : 1) * g.stride_w;
        }
    }
  });
}

void depthwise_weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw) {
  const Padding padding{g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w};
  const Pieces pieces(g.N, g.P, g.Q);
  const int64_t taps = g.R * g.S, size = taps * g.C, shares = shares_of(pieces.count(), size);
  std::vector<int64_t> places;
  for (int64_t t = 0; t < taps; ++t)
    places.push_back(t / g.S * g.dilation_h * padding.row() + t % g.S * g.dilation_w * g.C);
  float* sums = scratch(0, shares * size);
  in_shares(pieces, shares, sums, size, [&](const Pieces::Piece& piece, float* own) {
    const int64_t rows = (piece.rows - 1) * g.stride_h + g.reach_h() + 1;
    for (int64_t n = piece.image; n < piece.image + piece.images; ++n) {
      const float* image = padding.of(x + n * g.H * g.W * g.C, 1, piece.row * g.stride_h, rows);
      const float* gradients = dy + (n * g.P + piece.row) * g.Q * g.C;
      for_vectors(g.C, [&](int64_t c, int64_t count) {
        const auto some = [&]<int kCount>(int64_t t) {
          taps_at_once<kCount>(g, image + c, padding.row(), places.data() + t, gradients + c, piece.rows, own + t * g.C + c, count);
        };
        int64_t t = 0;
        for (; t + 9 <= taps; t += 9) some.template operator()<9>(t);
        for (; t + 4 <= taps; t += 4) some.template operator()<4>(t);
        for (; t < taps; ++t) some.template operator()<1>(t);
      });
    }
  });
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) dw[c * g.R * g.S + t] = sums[t * g.C + c];
}

}  // namespace apportion
